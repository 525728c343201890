"""Whole models quantized while they load: they say nearly the same, sleep, are saved, and are refused by name."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.lean.arriving import find_tensors
from dormouse_worker.model.lean.decoder import embed
from dormouse_worker.model.loader import load
from dormouse_worker.model.pooling.loader import load_pooler
from dormouse_worker.model.quantized.rounding import ROUNDINGS
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.testing_pooling import write_tiny_encoder
from dormouse_worker.model.weights.sharded import save_sharded_state
from dormouse_worker.model.weights.skeleton import iter_tensors
from tests.worker.model.quantized.rounded import quantize_rows
from tests.worker.model.test_lean import assert_the_same

# Biases of some, projections that are joined for our pass, fused ones, and a head with another name.
KINDS = ("qwen2", "llama", "phi3", "gpt_neox")
METHODS = ("int8", "int4")
DEVICES = {"fake": FakeDevice, "cpu": lambda: CpuDevice(Host())}


@pytest.fixture
def load_from():
    """Return a function (directory, device, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(directory, device=None, layout=None, **settings):
        settings = EngineSettings(model=str(directory), block_size=4, **{"quantization": "int8", **settings})
        models.append(load(settings, device or CpuDevice(Host()), layout))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


def snapshot(model):
    return {name: tensor.detach().clone() for name, tensor in iter_tensors(model.module)}


def assert_equal(tensors, others):
    assert tensors.keys() == others.keys()
    assert not [name for name in tensors if not torch.equal(tensors[name], others[name])]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("architecture", "device"), [*((kind, "cpu") for kind in KINDS), ("qwen2", "fake")])
def test_each_linear_map_has_the_numbers_of_its_plain_weight(load_from, tiny_model, architecture, device, method):
    plain = load_from(tiny_model(architecture), DEVICES[device](), quantization="none")
    quantized = load_from(tiny_model(architecture), DEVICES[device](), quantization=method)
    names = [name for name, part in plain.module.named_modules() if type(part) is nn.Linear]
    assert len(names) > 4
    for name in names:
        made = quantized.module.get_submodule(name)
        numbers, scales = quantize_rows(plain.module.get_submodule(name).weight, ROUNDINGS[made.format.name])
        assert torch.equal(made.weight, numbers)
        assert torch.equal(made.weight_scale, scales)
    assert quantized.info.num_parameters == plain.info.num_parameters
    assert quantized.info.dtype == plain.info.dtype
    assert quantized.weights_bytes < plain.weights_bytes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("architecture", "tied"), [("qwen2", True), ("qwen3", False), ("cwm", False)])
def test_our_pass_says_what_the_modules_say(load_from, tmp_path, architecture, tied, method):
    directory = write_tiny_model(tmp_path, architecture, tie_word_embeddings=tied)
    assert_the_same(load_from(directory, quantization=method))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_embedding_tied_to_the_head_shares_its_numbers(load_from, tmp_path, dtype):
    model = load_from(write_tiny_model(tmp_path, tie_word_embeddings=True), dtype=dtype)
    embedding, head = model.module.model.embed_tokens, model.module.lm_head
    assert embedding.weight.data_ptr() == head.weight.data_ptr()
    assert embedding.weight_scale.data_ptr() == head.weight_scale.data_ptr()
    assert model.lean.embedding.weight.data_ptr() == head.weight.data_ptr()
    found = embed(model.lean.embedding, torch.arange(5))
    assert found.dtype == getattr(torch, dtype)
    assert torch.equal(found, embedding(torch.arange(5)))


def test_our_pass_has_views_of_the_modules_tensors(load_from, tiny_model):
    model = load_from(tiny_model("qwen2"))
    attention, joined = model.module.model.layers[1].self_attn, model.lean.layers[1].attention.qkv
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert torch.equal(torch.cat([part.weight_scale for part in parts]), joined.scale)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.module.parameters(), *model.module.buffers())}
    assert {tensor.untyped_storage().data_ptr() for tensor in find_tensors(model.lean.layers)} <= own


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", [1, 2])
def test_every_sleep_brings_the_same_numbers_back(load_from, tiny_model, device, level, method):
    model = load_from(tiny_model("llama"), DEVICES[device](), quantization=method)
    before = snapshot(model)
    model.weights.save(level)
    model.weights.drop()
    model.weights.reserve()
    model.weights.restore()
    model.weights.arrive()
    model.weights.settle()
    model.weights.check_integrity()
    assert_equal(snapshot(model), before)


def test_random_weights_are_quantized_too(load_from, tiny_model):
    first, second = (load_from(tiny_model("llama"), load_format="dummy", seed=3) for _ in range(2))
    assert_equal(snapshot(first), snapshot(second))
    assert first.module.lm_head.weight.dtype == torch.uint8


@pytest.mark.parametrize("method", METHODS)
def test_what_was_saved_is_what_is_loaded(load_from, tiny_model, tmp_path, method):
    first = load_from(tiny_model("qwen2"), quantization=method)
    save_sharded_state(first.weights, tiny_model("qwen2"), tmp_path / "saved")
    second = load_from(tmp_path / "saved", load_format="sharded_state", quantization=method)
    assert_equal(snapshot(second), snapshot(first))
    with pytest.raises(ModelInvalid, match="weight_scale is in the sharded state, but has no place"):
        load_from(tmp_path / "saved", load_format="sharded_state", quantization="none")


@pytest.mark.parametrize(
    ("architecture", "part"),
    [
        ("gpt2", r"transformer\.h\.0\.attn\.c_attn\.weight of a Conv1D cannot have"),
        ("mixtral", r"model\.layers\.0\.mlp\.\S+ of a \w+ cannot have"),
    ],
)
def test_what_is_no_linear_map_is_refused_by_name(load_from, tiny_model, architecture, part):
    with pytest.raises(InvalidSettings, match=f"quantization is int8, which {part}; set quantization to none"):
        load_from(tiny_model(architecture))


def test_several_ranks_do_not_share_what_others_quantizers_load(load_from, tmp_path):
    directory = write_tiny_model(tmp_path, quantization_config={"quant_method": "torchao"})
    why = "2 ranks; a model whose weights transformers' quantizers load runs on one$"
    with pytest.raises(InvalidSettings, match=f"^tensor_parallel_size 2 × pipeline_parallel_size 1 = {why}"):
        load_from(directory, layout=Layout(tensor=2), quantization="none")


def test_a_model_that_makes_vectors_is_refused(tmp_path):
    settings = EngineSettings(model=str(write_tiny_encoder(tmp_path)), task="embed", quantization="int8")
    with pytest.raises(InvalidSettings, match=r"^quantization is int8, and so far nothing .* beside task embed; set"):
        load_pooler(settings, CpuDevice(Host()))


def test_layers_are_not_compiled(load_from, tiny_model):
    with pytest.raises(InvalidSettings, match="layers of quantization int8 are not compiled"):
        load_from(tiny_model("llama"), compile_sizes=(4,), attention_backend="sdpa")


def test_weights_that_are_quantized_already_are_refused(load_from, tmp_path):
    directory = write_tiny_model(tmp_path, quantization_config={"quant_method": "torchao"})
    with pytest.raises(InvalidSettings, match="says that the weights are quantized already"):
        load_from(directory)


def test_a_weight_that_is_not_finite_is_refused_where_it_stands(load_from, tmp_path):
    file = write_tiny_model(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][2, 5] = float("inf")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelInvalid, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds inf at element 69"):
        load_from(tmp_path)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backend", ["native", "sdpa"])
def test_the_path_names_the_format(load_from, tiny_model, backend, method):
    model = load_from(tiny_model("llama"), quantization=method)
    path = describe_path(model, backend)
    assert path == (
        f"native {model.native.name} {method}"
        if backend == "native"
        else f"lean {method} made plain in each pass, attention sdpa; not native: attention is not"
    )
