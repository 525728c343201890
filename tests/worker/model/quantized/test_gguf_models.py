"""Whole models as GGUF files: the weights that were written, in each way of loading; cut for ranks, asleep, saved."""

import json
import logging

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from dormouse_worker.common.errors import InvalidSettings, ModelChanged, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.modules import QuantizedLinear
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.weights.kind import ModelKind
from dormouse_worker.model.weights.loading import load_weights
from dormouse_worker.model.weights.sharded import save_sharded_state
from dormouse_worker.model.weights.skeleton import iter_tensors
from tests.worker.files.gguf.kit import BYTE_LEVEL, write
from tests.worker.native.test_forward import raw_logits

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3_text": "gemma3"}
LLAMA_CPP = {name: getattr(gguf.MODEL_ARCH, name.upper()) for name in ARCHITECTURES.values()}
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16")


def in_pairs(rows, heads):
    """Return a projection's rows as llama.cpp wants them: both of a rotation beside each other."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def convert(directory, file, types):
    """Write a Hugging Face directory as llama.cpp's converter does."""
    config = json.loads((directory / "config.json").read_text())
    name = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(LLAMA_CPP[name], config["num_hidden_layers"])
    tensors = {}
    for theirs, tensor in load_file(directory / "model.safetensors").items():
        if theirs == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        stem, _, last = theirs.rpartition(".")
        rows = tensor.numpy()
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(stem.rpartition(".")[2])
        if name == "llama" and heads:
            rows = in_pairs(rows, config[heads])
        if name.startswith("gemma") and stem.endswith("norm"):
            rows = rows + 1
        tensors[f"{names.get_name(stem)}.{last}"] = rows
    keys = {
        "vocab_size": config["vocab_size"],
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim", SIZES["head_dim"]),
        "attention.value_length": config.get("head_dim", SIZES["head_dim"]),
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    if name.startswith("gemma"):
        caps = ("attn_logit_softcapping", "final_logit_softcapping")
        keys |= {"attention.sliding_window": config["sliding_window"]} | {c: config[c] for c in caps if config.get(c)}
        keys |= {"attention.sliding_window_pattern": config["layer_types"].index("full_attention") + 1}
    rope = config["rope_parameters"]
    keys["rope.freq_base"] = float(rope.get("full_attention", rope)["rope_theta"])
    said = {f"{name}.{key}": value for key, value in keys.items()} | BYTE_LEVEL
    return write(file, said, tensors, types, architecture=name)


@pytest.fixture
def model_file(tmp_path):
    """Return a function (architecture, types, sizes) → (the directory that it was made of, the file)."""

    def make(architecture="llama", types=None, **sizes):
        (tmp_path / "plain").mkdir()
        directory = write_tiny_model(tmp_path / "plain", architecture, **{**SIZES, **sizes})
        return directory, convert(directory, tmp_path / "m.gguf", types or {})

    return make


@pytest.fixture
def load_from(tmp_path):
    """Return a function (file or directory, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(path, device=None, layout=None, **settings):
        fields = {"dtype": "float32", "tokenizer_cache": str(tmp_path / "cache"), **settings}
        wanted = as_directory(EngineSettings(model=str(path), block_size=4, **fields))
        models.append(load(wanted, device or CpuDevice(Host()), layout))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


def tensors_of(model):
    return {name: tensor.clone() for name, tensor in iter_tensors(model.module)}


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def kept(model):
    return {name for name, part in model.module.named_modules() if isinstance(part, QuantizedLinear)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_and_logits_are_those_of_the_model_that_was_converted(load_from, model_file, architecture):
    sizes = {"query_pre_attn_scalar": 64, "tie_word_embeddings": True} if "gemma" in architecture else {}
    directory, file = model_file(architecture, **sizes)
    ours, plain = load_from(file), load_from(directory)
    assert ours.load_report.path == "fast"
    found, wanted = tensors_of(ours), tensors_of(plain)
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], atol=1e-6, rtol=0)  # a norm and one is a rounding more
    torch.testing.assert_close(raw_logits(ours, SdpaBackend()), raw_logits(plain, SdpaBackend()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_is_what_transformers_makes_of_the_file(load_from, model_file, kind):
    _, file = model_file("llama", {"": kind})
    model = load_from(file)
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).state_dict()
    found = {
        name: tensor for name, tensor in tensors_of(model).items() if name in theirs and name in tensors_plain(model)
    }
    assert len(found) > 5
    assert not [name for name, tensor in found.items() if not torch.equal(tensor, theirs[name])]


def tensors_plain(model):
    return {name for name, _ in iter_tensors(model.module) if name.rpartition(".")[0] not in kept(model)}


@pytest.mark.parametrize(
    ("kind", "dtype", "name"),
    [
        ("Q4_0", "bfloat16", "w4a16/32"),
        ("Q4_0", "float32", "w4a16/32"),
        ("Q4_1", "bfloat16", "w4a16/32 with lows"),
        ("Q4_1", "float32", "w4a16/32 with lows"),
        ("Q5_0", "float32", "w8a16/32"),
        ("Q8_0", "float32", "w8a16/32"),
        ("Q6_K", "float32", "w8a16/16"),
    ],
)
def test_numbers_are_kept_and_logits_have_the_bits_of_plain_weights(load_from, model_file, kind, dtype, name):
    _, file = model_file("llama", {"": kind}, tie_word_embeddings=False)
    short, plain = load_from(file, dtype=dtype), load_from(file, dtype=dtype, attention_backend="sdpa")
    assert (len(kept(short)), kept(plain)) == (15, set())
    assert short.weights_bytes < plain.weights_bytes * (0.5 if kind.startswith("Q4") else 0.7)
    assert describe_path(short, "native").endswith(f" {name}")
    expected = raw_logits(plain, NativeBackend(), chunks=(20,))
    for chunks in ((20,), (17, 1, 1, 1)):
        assert (raw_logits(short, NativeBackend(), chunks=chunks) == expected).all()


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K"])
def test_numbers_of_8_bits_are_nearer_to_the_file_than_plain_weights_of_bfloat16(load_from, model_file, kind):
    _, file = model_file("llama", {"": kind}, tie_word_embeddings=False)
    short = load_from(file, dtype="bfloat16")
    whole = raw_logits(short, NativeBackend(), chunks=(20,))
    assert (raw_logits(short, NativeBackend(), chunks=(17, 1, 1, 1)) == whole).all()
    exact, plain = (
        raw_logits(load_from(file, dtype=dtype, attention_backend="sdpa"), NativeBackend(), chunks=(20,))
        for dtype in ("float32", "bfloat16")
    )
    assert (whole - exact).square().sum() <= (plain - exact).square().sum()


def test_a_tied_head_and_other_types_are_made_plain_and_that_is_said(load_from, model_file, caplog):
    with caplog.at_level(logging.INFO):
        model = load_from(model_file("llama", {"": "Q4_0", "blk.0.attn_k.weight": "Q8_0"}, tie_word_embeddings=True)[1])
    assert len(kept(model)) == 11
    assert "14 Q4_0, 5 F32, 1 Q8_0; 11 weights keep their numbers, others are made plain" in caplog.text


def test_projections_of_two_kinds_are_made_plain_together(load_from, model_file):
    _, file = model_file("llama", {"": "Q4_0", "blk.0.attn_k.weight": "Q4_1"}, tie_word_embeddings=False)
    model = load_from(file)
    assert len(kept(model)) == 12
    assert not kept(model) & {f"model.layers.0.self_attn.{name}_proj" for name in "qkv"}
    assert isinstance(model.native, NativeDecoder)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_brings_the_same_weights_back(load_from, model_file, level, kind):
    device = CpuDevice(Host()) if kind.startswith("Q") else FakeDevice()
    model = load_from(model_file("llama", {"": kind})[1], device, dtype="bfloat16")
    before = tensors_of(model)
    sleep(model, level)
    assert not differing(tensors_of(model), before)


def sleep(model, level):
    model.weights.save(level)
    model.weights.drop()
    model.weights.reserve()
    model.weights.restore()
    model.weights.arrive()
    model.weights.settle()


def test_a_file_that_changed_during_a_sleep_is_refused(load_from, model_file):
    _, file = model_file("llama", {"": "Q8_0"})
    model = load_from(file)
    raw = bytearray(file.read_bytes())
    raw[-100] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ModelChanged, match="is not what was loaded before the sleep"):
        sleep(model, 2)


def plain_of(part):
    """Return the weight that a map stands for."""
    is_packed = isinstance(part, QuantizedLinear)
    return part.format.dequantize(part.weight, part.weight_scale, part.in_features) if is_packed else part.weight


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "Q4_0", "Q4_1"])
def test_each_rank_reads_its_part(load_from, model_file, kind):
    _, file = model_file("llama", {"": kind})
    whole = load_from(file, attention_backend="sdpa").module
    ranks = [load_from(file, layout=Layout(tensor=2, rank=rank)).module for rank in range(2)]
    for path, dimension in (("model.layers.0.self_attn.q_proj", 0), ("model.layers.1.mlp.down_proj", 1)):
        expected = whole.get_submodule(path).weight
        parts = [plain_of(rank.get_submodule(path)).to(expected.dtype) for rank in ranks]
        assert torch.equal(torch.cat(parts, dimension), expected)


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_they_may_be_rounded_again(load_from, model_file, method):
    model = load_from(model_file("llama", {"": "Q8_0"})[1], quantization=method)
    assert model.module.get_submodule("model.layers.1.mlp.down_proj").format.name == method


def test_adapters_stand_beside_weights_that_keep_their_bits(load_from, model_file):
    assert kept(load_from(model_file("llama", {"": "Q4_0"})[1], enable_lora=True, max_loras=1))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q6_K", "Q8_0"])
def test_what_was_saved_is_what_is_loaded(load_from, model_file, tmp_path, kind):
    _, file = model_file("llama", {"": kind}, tie_word_embeddings=False)
    first = load_from(file)
    made = as_directory(EngineSettings(model=str(file), tokenizer_cache=str(tmp_path / "cache"))).model_path
    save_sharded_state(first.weights, made, tmp_path / "saved")
    second = load_from(tmp_path / "saved", load_format="sharded_state")
    assert not differing(tensors_of(second), tensors_of(first))
    assert kept(second) == kept(first)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("blk.1.ffn_up.weight"), r"has no tensor for model\.layers\.1\.mlp\.up_proj\.weight"),
        (
            lambda t: t.update({"blk.0.odd.weight": np.ones(3, np.float32)}),
            r"tensor blk\.0\.odd\.weight, F32 \[3\], has no place in a LlamaForCausalLM",
        ),
        (lambda t: t.update({"blk.0.attn_q.bias": np.ones(9, np.float32)}), r"attn_q\.bias is \[9\], and"),
        (lambda t: t.update({"blk.0.attn_norm.weight": np.full(256, np.nan, np.float32)}), "holds nan at element 0"),
        (lambda t: t.update({"blk.0.attn_v.weight": np.ones((64, 256), np.float32)}), r"is \[64, 256\], and"),
    ],
)
def test_tensors_that_contradict_are_refused_by_name(load_from, model_file, tmp_path, edit, words):
    _, file = model_file("llama")
    reader = gguf.GGUFReader(file)
    tensors = {one.name: np.array(one.data) for one in reader.tensors}
    edit(tensors)
    keys = {n: f.contents() for n, f in reader.fields.items() if not n.startswith(("GGUF.", "general."))}
    other = write(tmp_path / "other.gguf", keys, tensors)
    with pytest.raises(ModelInvalid, match=words):
        load_from(other)


def test_another_task_is_refused_by_name(model_file, tmp_path):
    settings = as_directory(EngineSettings(model=str(model_file()[1]), tokenizer_cache=str(tmp_path / "cache")))
    settings = msgspec.structs.replace(settings, task="embed")
    files = check_model_files(settings.model_path, "auto")
    config = AutoConfig.from_pretrained(settings.model_path)
    with pytest.raises(InvalidSettings, match="task is embed, and GGUF files are read for the task generate alone"):
        load_weights(config, settings, CpuDevice(Host()), files, kind=ModelKind())
