"""Checkpoints of 4 bits that keep them: the same answers bit by bit as with plain weights, asleep, awake and saved."""

import json
import logging

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.modules import QuantizedLinear
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.weights.sharded import save_sharded_state
from dormouse_worker.model.weights.skeleton import iter_tensors
from tests.worker.model.quantized.checkpoints import awq, compressed, gptq, packed, quantize_model
from tests.worker.native.test_forward import raw_logits

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
DOWN = "model.layers.1.mlp.down_proj"
KINDS = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, lambda weight: gptq(weight, size=128)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, lambda weight: awq(weight, size=32)),
    "w4a16": (
        compressed("int", 4, "pack-quantized", strategy="group", group_size=64, symmetric=False),
        lambda weight: packed(weight, size=64, symmetric=False),
    ),
    "w4a16 of outputs": (compressed("int", 4, "pack-quantized"), lambda weight: packed(weight, size=-1)),
}


@pytest.fixture
def load_from():
    """Return a function (directory, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(directory, **settings):
        fields = EngineSettings(model=str(directory), block_size=4, **{"dtype": "bfloat16", **settings})
        models.append(load(fields, CpuDevice(Host())))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


@pytest.fixture
def checkpoint(tmp_path):
    """Return a function kind → directory."""

    def write(kind, said=None, make=None):
        known = KINDS.get(kind, (said, make))
        quantize_model(write_tiny_model(tmp_path, "qwen2", **SIZES), kind, {kind: known})
        return tmp_path

    return write


def kept(model):
    return {name for name, part in model.module.named_modules() if isinstance(part, QuantizedLinear)}


def tensors_of(model):
    return {name: tensor.clone() for name, tensor in iter_tensors(model.module)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_have_the_bits_of_plain_weights(load_from, checkpoint, kind, dtype):
    directory = checkpoint(kind)
    four = load_from(directory, dtype=dtype)
    plain = load_from(directory, dtype=dtype, attention_backend="sdpa")
    assert (len(kept(four)), kept(plain)) == (14, set())
    assert four.weights_bytes < plain.weights_bytes
    assert four.num_parameters == plain.num_parameters
    expected = raw_logits(plain, NativeBackend(), chunks=(20,))
    for chunks in ((20,), (17, 1, 1, 1)):
        assert (raw_logits(four, NativeBackend(), chunks=chunks) == expected).all()
    assert torch.equal(raw_logits(four, SdpaBackend()), raw_logits(plain, SdpaBackend()))


def test_the_path_names_the_format(load_from, checkpoint):
    model = load_from(checkpoint("gptq"))
    assert describe_path(model, "native") == f"native {model.native.name} w4a16/128"
    assert describe_path(model, "sdpa").startswith("lean w4a16/128 made plain in each pass")


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_brings_the_same_numbers_back(load_from, checkpoint, level):
    model = load_from(checkpoint("awq"))
    before = tensors_of(model)
    model.weights.save(level)
    model.weights.drop()
    model.weights.reserve()
    model.weights.restore()
    model.weights.arrive()
    model.weights.settle()
    model.weights.check_integrity()
    after = tensors_of(model)
    assert not [name for name in before if not torch.equal(before[name], after[name])]


def test_what_was_saved_is_what_is_loaded(load_from, checkpoint, tmp_path):
    first = load_from(checkpoint("gptq"))
    save_sharded_state(first.weights, tmp_path, tmp_path.parent / f"{tmp_path.name}-saved")
    second = load_from(tmp_path.parent / f"{tmp_path.name}-saved", load_format="sharded_state")
    before, after = tensors_of(first), tensors_of(second)
    assert before.keys() == after.keys()
    assert not [name for name in before if not torch.equal(before[name], after[name])]
    assert kept(second) == kept(first)


@pytest.mark.parametrize(
    ("why", "settings"),
    [
        ("torch computes", {"attention_backend": "sdpa"}),
        ("of transformers", {"model_impl": "transformers"}),
        ("no kernels of this type", {"dtype": "float16"}),
    ],
)
def test_where_our_kernels_do_not_compute_weights_are_plain(load_from, checkpoint, why, settings):
    assert kept(load_from(checkpoint("gptq"), **settings)) == set(), why


@pytest.mark.parametrize(
    ("said", "make"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
            lambda weight: gptq(weight, size=32, act_order=True),
        ),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, lambda weight: gptq(weight, bits=8, size=32)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, lambda weight: gptq(weight, size=16)),
    ],
)
def test_orders_8_bits_and_odd_groups_are_made_plain_and_that_is_said(load_from, checkpoint, caplog, said, make):
    with caplog.at_level(logging.INFO):
        model = load_from(checkpoint("odd", said, make))
    assert kept(model) == set()
    assert "0 weights keep 4 bits, 14 are made plain" in caplog.text


def test_projections_that_are_joined_are_kept_together_or_not_at_all(load_from, checkpoint, tmp_path):
    file = checkpoint("gptq") / "model.safetensors"
    tensors = load_file(file)
    path = "model.layers.0.self_attn.k_proj"
    for part in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[f"{path}.{part}"]
    save_file({**tensors, f"{path}.weight": torch.zeros(64, 128)}, file, metadata={"format": "pt"})
    model = load_from(tmp_path)
    assert not kept(model) & {f"model.layers.0.self_attn.{name}_proj" for name in "qkv"}
    assert len(kept(model)) == 11
    assert model.lean is not None


def test_a_scale_that_is_not_finite_is_refused_where_it_stands(load_from, checkpoint):
    file = checkpoint("awq") / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{DOWN}.scales"][0, 0] = np.inf
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelInvalid, match=rf"{DOWN}\.qweight holds a scale that is not finite; copy the files again"):
        load_from(file.parent)


def test_an_order_that_the_configuration_does_not_tell_of_is_refused(load_from, checkpoint):
    file = checkpoint("gptq") / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{DOWN}.g_idx"] = tensors[f"{DOWN}.g_idx"].flip(0).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelInvalid, match="has an order of inputs, and config"):
        load_from(file.parent)


def test_they_may_be_rounded_again(load_from, checkpoint):
    model = load_from(checkpoint("gptq"), quantization="int4")
    assert model.module.get_submodule(DOWN).format.name == "int4"


def test_layers_are_not_compiled(load_from, checkpoint, monkeypatch):
    directory = checkpoint("gptq")
    monkeypatch.setattr("dormouse_worker.model.loader.build_native", lambda *_: Unfit("of a test"))
    with pytest.raises(InvalidSettings, match="layers of quantization w4a16/128 are not compiled"):
        load_from(directory, compile_sizes=(4,))
    assert json.loads((directory / "config.json").read_text())["quantization_config"]["bits"] == 4
