"""Weights that are not finite are refused while they are read, by tensor and file; what may be infinite is let be."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.weights.testing import make_store

NAN, INFINITY = float("nan"), float("inf")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def write(directory, name, value, architecture="llama", dtype=torch.float32, **overrides):
    """Write a model with one number replaced."""
    path = write_tiny_model(directory, architecture, **overrides) / "model.safetensors"
    tensors = {key: tensor.to(dtype) for key, tensor in load_file(path).items()}
    tensors[name].view(-1)[3] = value
    save_file(tensors, path, {"format": "pt"})
    return directory


def load_from(directory, layout=None, **settings):
    device = FakeDevice()
    try:
        model = load(EngineSettings(model=str(directory), block_size=4, **settings), device, layout or Layout())
        model.weights.close()
    finally:
        assert device.memory.used_bytes == 0
    return model


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", Q_PROJ, "model.norm.weight"])
def test_a_number_that_is_not_finite_is_refused_by_tensor_and_file(tmp_path, name, dtype, value):
    directory = write(tmp_path / "m", name, value, dtype=dtype)
    words = rf"{re.escape(str(directory))}/model.safetensors: {re.escape(name)} holds {value} at element 3 "
    with pytest.raises(ModelInvalid, match=words):
        load_from(directory)


def test_so_is_one_that_is_too_large_for_the_type_it_is_loaded_as(tmp_path):
    directory = write(tmp_path / "m", Q_PROJ, 70000.0)
    assert load_from(directory).load_report.path == "fast"
    with pytest.raises(ModelInvalid, match=rf"{Q_PROJ} holds inf at element 3 \(as torch.float16\); .* wider range$"):
        load_from(directory, dtype="float16")


def test_so_is_one_that_transformers_converts(tmp_path):
    directory = write(tmp_path / "m", "model.layers.0.block_sparse_moe.gate.weight", NAN, "mixtral")
    with pytest.raises(ModelInvalid, match=r"as transformers reads it from the model's files, holds nan at element 3"):
        load_from(directory)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_refuses_what_it_holds_of_it(tmp_path, rank):
    directory = write(tmp_path / "m", Q_PROJ, NAN)
    layout = Layout(tensor=2, pipeline=1, rank=rank)
    if rank == 0:
        with pytest.raises(ModelInvalid, match=rf"model.safetensors: {Q_PROJ} holds nan"):
            load_from(directory, layout, tensor_parallel_size=2)
    else:
        load_from(directory, layout, tensor_parallel_size=2)


def test_a_sink_may_be_minus_infinity_and_not_nan(tmp_path):
    sinks = "model.layers.0.self_attn.sinks"
    load_from(write(tmp_path / "a", sinks, -INFINITY, "gpt_oss"))
    with pytest.raises(ModelInvalid, match=r"sinks.* holds nan at element 3"):
        load_from(write(tmp_path / "b", sinks, NAN, "gpt_oss"))


def test_what_is_computed_and_what_is_no_floating_number_are_not_looked_at():
    whole = torch.full((600,), -1, dtype=torch.int16)  # as bits of bfloat16 NaN
    store, _ = make_store(FakeDevice(), {"a": torch.randn(8), "b": whole}, {"mask": torch.full((4,), -INFINITY)})
    store.load("auto")
    store.close()


def test_a_wake_does_not_look_again():
    """Its checksums say that it is what was looked at."""
    store, source = make_store(FakeDevice(), {"a": torch.randn(8)})
    store.load("auto")
    store.save(2)
    store.drop()
    source.origin = None  # whoever looked would ask it
    store.restore()
    store.settle()
    store.close()
