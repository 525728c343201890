"""config.json and generation_config.json of what a GGUF file says. What is not known of an architecture is refused.

llama.cpp knows of each architecture what its files do not say; so do the functions here.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.gguf.names import FREQUENCIES
from dormouse_worker.files.safetensors_files import StoredTensor

Config = dict[str, Any]

_KNOWN = frozenset(
    (
        *("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size"),
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "rope.scaling.type"),
        *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
        *("expert_count", "expert_used_count", "attention.sliding_window", "attention.sliding_window_pattern"),
        *("attn_logit_softcapping", "final_logit_softcapping", "rope.freq_base_swa", "tensor_data_layout"),
    )
)
_END_OF_TURN = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<EOT>"})
_SINGLE_EXPERT = (None, 0)
_CONTROL = 3  # the type of a token that text never becomes


def config_of(facts: Facts) -> Config:
    """Return config.json. Raises ModelInvalid for an architecture, or something of it, that is not read."""
    make = _ARCHITECTURES.get(facts.architecture)
    if make is None:
        raise facts.refusal(
            f"general.architecture is {facts.architecture[:80]!r}; read are {', '.join(_ARCHITECTURES)}: use the "
            "model's safetensors"
        )
    if unknown := sorted(set(facts.of_architecture()) - _KNOWN):
        raise facts.refusal(
            f"{facts.architecture}.{unknown[0][:80]} is nothing that is read of this architecture; use the model's "
            "safetensors"
        )
    if facts.whole(f"{facts.architecture}.expert_count", 0) not in _SINGLE_EXPERT:
        raise facts.refusal(f"{facts.architecture}.expert_count is above 0: experts are not read; use the safetensors")
    return {**_common(facts), **make(facts)}


def generation_config_of(facts: Facts) -> Config:
    """Return generation_config.json: with all tokens that end an answer, those that llama.cpp knows by name too."""
    named = [facts.maybe_whole(f"tokenizer.ggml.{short}_token_id") for short in ("eos", "eot", "eom")]
    found = dict.fromkeys([*(token for token in named if token is not None), *_ends_of_turns(facts)])
    ids = _special_ids(facts) | {"eos_token_id": list(found)}
    return {name: value for name, value in ids.items() if value != []}


def _ends_of_turns(facts: Facts) -> list[int]:
    if "tokenizer.ggml.tokens" not in facts.gguf.metadata or "tokenizer.ggml.token_type" not in facts.gguf.metadata:
        return []
    kinds = facts.numbers("tokenizer.ggml.token_type", "i")
    tokens = zip(facts.texts("tokenizer.ggml.tokens"), kinds, strict=False)
    return [number for number, (token, kind) in enumerate(tokens) if kind == _CONTROL and token in _END_OF_TURN]


def _common(facts: Facts) -> Config:
    """Return what all architectures call the same."""
    name = facts.architecture
    embedding = facts.gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise facts.refusal("has no tensor token_embd.weight of two dimensions; copy the file again")
    heads = facts.whole(f"{name}.attention.head_count")
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": facts.whole(f"{name}.embedding_length"),
        "intermediate_size": facts.whole(f"{name}.feed_forward_length"),
        "num_hidden_layers": facts.whole(f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.whole(f"{name}.attention.head_count_kv", heads),
        "head_dim": _head_dim(facts, heads),
        "max_position_embeddings": facts.whole(f"{name}.context_length"),
        "rms_norm_eps": facts.real(f"{name}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in facts.gguf.tensors,
        "dtype": "float32" if {one.dtype for one in facts.gguf.tensors.values()} == {"F32"} else "bfloat16",
        **_special_ids(facts),
    }


def _head_dim(facts: Facts, heads: int) -> int:
    name = facts.architecture
    usual = facts.whole(f"{name}.embedding_length") // max(heads, 1)
    size = facts.whole(f"{name}.attention.key_length", usual) or 0
    for key in ("attention.value_length", "rope.dimension_count"):
        other = facts.whole(f"{name}.{key}", size)
        if other != size:
            raise facts.refusal(f"{name}.{key} is {other}, and heads of {size} are read with the same alone")
    return size


def _special_ids(facts: Facts) -> Config:
    named = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: facts.maybe_whole(f"tokenizer.ggml.{short}_token_id") for name, short in named.items()}
    return {name: value for name, value in ids.items() if value is not None}


def _llama(facts: Facts) -> Config:
    return {
        **_named("Llama", "llama"),
        **_rotation(facts, 10_000.0),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in facts.gguf.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in facts.gguf.tensors,
    }


def _qwen2(facts: Facts) -> Config:
    heads, size = facts.whole("qwen2.attention.head_count"), facts.whole("qwen2.embedding_length")
    if _head_dim(facts, heads) * heads != size:
        raise facts.refusal(f"qwen2.attention.key_length is not {size} / {heads}, which is not read")
    return {**_named("Qwen2", "qwen2"), **_rotation(facts, 1_000_000.0), "hidden_act": "silu"}


def _qwen3(facts: Facts) -> Config:
    return {**_named("Qwen3", "qwen3"), **_rotation(facts, 1_000_000.0), "hidden_act": "silu", "attention_bias": False}


def _gemma(facts: Facts, *, pattern: int, large: int) -> Config:
    """Return what both have in common; every so many layers see everything, the others a window.

    The queries of the model of so many layers, the largest, are scaled by its width, as llama.cpp knows.
    """
    name = facts.architecture
    heads, num_layers = facts.whole(f"{name}.attention.head_count"), facts.whole(f"{name}.block_count")
    is_large = num_layers == large
    width = facts.whole(f"{name}.embedding_length") // max(heads, 1)
    every = facts.whole(f"{name}.attention.sliding_window_pattern", pattern) or pattern
    kinds = ("sliding_attention", "full_attention")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width if is_large else _head_dim(facts, heads),
        "sliding_window": facts.whole(f"{name}.attention.sliding_window"),
        "layer_types": [kinds[number % every == 0] for number in range(1, min(num_layers, _most_layers(facts)) + 1)],
        "attn_logit_softcapping": facts.maybe_real(f"{name}.attn_logit_softcapping"),
        "final_logit_softcapping": facts.maybe_real(f"{name}.final_logit_softcapping"),
    }


def _most_layers(facts: Facts) -> int:
    """Return a number that no count of layers can reach: each has a tensor."""
    return len(facts.gguf.tensors)


def _gemma2(facts: Facts) -> Config:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # where a file says nothing
    told = {name: value for name, value in _gemma(facts, pattern=2, large=46).items() if value is not None}
    return {**_named("Gemma2", "gemma2"), **_rotation(facts, 10_000.0), **caps, **told}


def _gemma3(facts: Facts) -> Config:
    everywhere = _rotation(facts, 1_000_000.0)["rope_parameters"]
    local = {"rope_type": "default", "rope_theta": facts.real("gemma3.rope.freq_base_swa", 10_000.0)}
    return {
        **_named("Gemma3", "gemma3_text"),
        **_gemma(facts, pattern=6, large=62),
        "rope_parameters": {"full_attention": everywhere, "sliding_attention": local},
    }


def _named(prefix: str, model_type: str) -> Config:
    return {"architectures": [f"{prefix}ForCausalLM"], "model_type": model_type}


def _rotation(facts: Facts, theta: float) -> Config:
    """Return rope_parameters; `theta` is what holds where the file says nothing."""
    name = facts.architecture
    base = facts.real(f"{name}.rope.freq_base", theta)
    kind = facts.text(f"{name}.rope.scaling.type", "none")
    if (factors := facts.gguf.tensors.get(FREQUENCIES)) is not None:
        return {"rope_parameters": {"rope_theta": base, **_llama3(facts, factors, base or theta)}}
    if kind == "none":
        return {"rope_parameters": {"rope_type": "default", "rope_theta": base}}
    if kind == "linear":
        factor = facts.real(f"{name}.rope.scaling.factor")
        return {"rope_parameters": {"rope_type": "linear", "rope_theta": base, "factor": factor}}
    raise facts.refusal(f"{name}.rope.scaling.type is {kind[:80]!r}; read are none and linear: use the safetensors")


def _llama3(facts: Facts, stored: StoredTensor, base: float) -> Config:
    """Return which of the ways of Llama 3 it is to read longer texts, whose outcome is all that the file has."""
    size = _head_dim(facts, facts.whole(f"{facts.architecture}.attention.head_count"))
    if stored.dtype != "F32" or stored.shape != (size // 2,):
        raise facts.refusal(f"tensor {FREQUENCIES} is {stored.dtype} {list(stored.shape)}; F32 [{size // 2}] is read")
    factors = _floats(stored)
    told = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    largest = max(factors)
    if any(abs(a / b - 1) > 1e-4 for a, b in zip(factors, _llama3_factors(size, base, largest), strict=True)):
        raise facts.refusal(
            f"tensor {FREQUENCIES} is not what Llama 3 makes of a factor {largest:g}; nothing else is read"
        )
    return {"rope_type": "llama3", "factor": float(f"{largest:.6g}"), **told}


def _llama3_factors(size: int, base: float, factor: float) -> list[float]:
    """Return what each frequency of Llama 3 is divided by."""
    factors = []
    for pair in range(size // 2):
        turns = 8192 * base ** (-2 * pair / size) / (2 * math.pi)  # within what it was trained on
        share = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return factors


def _floats(stored: StoredTensor) -> tuple[float, ...]:
    """Return the numbers of a small tensor. Raises ModelInvalid where one is not above zero and finite."""
    with stored.file.open("rb") as stream:
        raw = os.pread(stream.fileno(), stored.end - stored.start, stored.start)
    numbers = struct.unpack(f"<{len(raw) // 4}f", raw)
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ModelInvalid(f"{stored.file}: tensor {FREQUENCIES} has a number that is no factor; copy the file again")
    return numbers


_ARCHITECTURES: Mapping[str, Callable[[Facts], Config]] = MappingProxyType(
    {"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gemma2": _gemma2, "gemma3": _gemma3}
)
ARCHITECTURES = tuple(_ARCHITECTURES)
