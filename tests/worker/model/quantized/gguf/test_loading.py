"""Whole models as GGUF files: the weights that were written, in each way of loading."""

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM

from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.weights.skeleton import iter_tensors
from tests.worker.model.quantized.gguf.kit import ARCHITECTURES, kept, tensors_of
from tests.worker.native.test_forward import raw_logits

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16")


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
        ("Q5_1", "bfloat16", "w8a16/32 with lows"),
        ("Q5_1", "float32", "w8a16/32 with lows"),
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
