"""What the converter of GGUF files makes of their parts, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tools.gguf_model import Gguf, NotConvertible, check, config, halves_apart, parameter, special_ids, weights

LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.rope.freq_base": 1e5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.eos_token_id": 1,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("general.architecture", "gemma3"),
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.pre", "qwen2"),
        ("llama.rope.scaling.type", "yarn"),
    ],
)
def test_what_would_be_converted_wrongly_is_named(name, value):
    check(LLAMA)
    with pytest.raises(NotConvertible, match=f"{name} is {value!r}"):
        check(LLAMA | {name: value})


def test_the_configuration_says_what_the_file_says():
    made = config(LLAMA, has_head=False)
    assert (made["hidden_size"], made["num_key_value_heads"], made["rope_theta"]) == (8, 1, 1e5)
    assert (made["rms_norm_eps"], made["tie_word_embeddings"]) == (1e-5, True)
    assert config(LLAMA, has_head=True)["tie_word_embeddings"] is False
    assert special_ids(LLAMA) == {"eos_token_id": 1}


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.ffn_up.weight", "model.layers.12.mlp.up_proj.weight"),
    ],
)
def test_a_tensor_gets_the_name_that_transformers_knows(name, theirs):
    assert parameter(name) == theirs


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight", "rope_freqs.weight", "output"])
def test_a_tensor_that_a_plain_llama_does_not_have_is_refused(name):
    with pytest.raises(NotConvertible, match=f"has a tensor {name},"):
        parameter(name)


def test_rows_of_one_rotation_come_to_lie_half_a_head_apart():
    rows = np.arange(8.0)[:, None]  # two heads of two pairs
    assert halves_apart(rows, num_heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_only_queries_and_keys_are_turned():
    rows = np.arange(32, dtype=np.float32).reshape(4, 8)
    names = [f"blk.0.attn_{part}.weight" for part in "kv"]
    made = weights(Gguf(LLAMA, iter([(name, rows) for name in names])))
    assert made["model.layers.0.self_attn.v_proj.weight"][:, 0].tolist() == [0, 8, 16, 24]
    assert made["model.layers.0.self_attn.k_proj.weight"][:, 0].tolist() == [0, 16, 8, 24]
