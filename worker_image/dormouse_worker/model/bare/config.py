"""What config.json says of a model that needs no torch. Pure.

Read strictly: whoever meets a word that is not known here, or misses one for which transformers has a default of its
own, says so, and leaves the model to transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.rope_kinds import PARAMETERS, PLAIN
from dormouse_worker.native.abi import MAX_HEAD_SIZE

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
    }
)
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)
_FIXED: Mapping[str, object] = MappingProxyType(  # other values are transformers' to compute
    {
        "attention_bias": False,
        "hidden_act": "silu",
        "mlp_bias": False,
        "pretraining_tp": 1,
        "use_sliding_window": False,
    }
)
_SAY_NOTHING = frozenset(  # of what a forward pass computes
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "is_llama_config",
        "max_window_layers",
        "model_type",
        "pad_token_id",
        "rope_interleaved",  # of who trained SmolLM; the files are in Llama's order
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
    }
)
_READ = frozenset(
    {
        *_SIZES,
        *_FIXED,
        "head_dim",
        "layer_types",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
    }
)
MOST_ROPE = 1e30  # of any parameter of positions, and of 1 over it: what is computed of them stays finite


@dataclass(frozen=True, slots=True)
class BareConfig:
    """A model's sizes, named as in config.json."""

    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int
    rms_norm_eps: float
    rope: Mapping[str, Any]  # what `rotary.frequencies` takes
    tie_word_embeddings: bool
    sliding_window: int | None
    has_biases: bool  # of queries, keys and values
    has_head_norms: bool


def read_config(config: Mapping[str, Any]) -> BareConfig | Unfit:
    """Return the sizes, or why transformers has to read this configuration."""
    reason = next(_misfits(config), None)
    if reason is not None:
        return Unfit(reason)
    kind = config["model_type"]
    return BareConfig(
        **{name: config[name] for name in _SIZES},
        head_dim=_head_size(config),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope={"rope_type": PLAIN, **_rope(config)},
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        sliding_window=config["sliding_window"] if kind == "mistral" else None,
        has_biases=kind == "qwen2",
        has_head_norms=kind == "qwen3",
    )


def _misfits(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs; later checks may rely on what earlier ones would have yielded."""
    needed = (*_SIZES, "rms_norm_eps", *(("sliding_window",) if config.get("model_type") == "mistral" else ()))
    yield from odd_words(config, FAMILIES, _READ | _SAY_NOTHING, _FIXED, needed)
    yield from _wrong_values(config)


def odd_words(
    config: Mapping[str, Any],
    families: Mapping[str, str],
    known: Set[str],
    fixed: Mapping[str, object],
    needed: Sequence[str],
) -> Iterator[str]:
    """Yield where a configuration is of none of these families, or says what is not known, not this, or too little."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or config.get("architectures") != [families.get(kind)]:
        yield f"config.json describes no {' or '.join(families.values())}"
    if unknown := sorted(config.keys() - known):
        yield f"config.json says {unknown[0]}, which is not known here"
    for name, value in fixed.items():
        if config.get(name, value) != value:
            yield f"{name} is {config[name]!r}"
    if missing := [name for name in needed if name not in config]:
        yield f"config.json has no {missing[0]}"


def _wrong_values(config: Mapping[str, Any]) -> Iterator[str]:
    for name in _SIZES:
        if type(config[name]) is not int or config[name] < 1:
            yield f"{name} is {config[name]!r}"
    yield from wrong_eps(config, "rms_norm_eps")
    yield from _wrong_rope(config)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        yield "its layers attend in several ways"
    window = config.get("sliding_window")
    if window is not None and (type(window) is not int or window < 1):
        yield f"sliding_window is {window!r}"
    yield from _wrong_heads(config)


def wrong_eps(config: Mapping[str, Any], word: str) -> Iterator[str]:
    """Yield where what norms add to the variance is no such number."""
    if type(config[word]) not in (int, float) or not 0 < config[word] < 1:
        yield f"{word} is {config[word]!r}"


def _wrong_rope(config: Mapping[str, Any]) -> Iterator[str]:
    rope = _rope(config)
    wanted = PARAMETERS.get(str(rope.get("rope_type", PLAIN)))
    if wanted is None or rope.keys() - wanted - {"rope_type"}:
        yield f"its positions are no rotary embedding of type {' or '.join(PARAMETERS)}"
        return
    for name in sorted(wanted):
        if type(rope.get(name)) not in (int, float) or not 1 / MOST_ROPE < rope[name] < MOST_ROPE:
            yield f"{name} is {rope.get(name)!r}"
    if "high_freq_factor" in wanted and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        yield "high_freq_factor is not above low_freq_factor"


def _wrong_heads(config: Mapping[str, Any]) -> Iterator[str]:
    if config["model_type"] == "qwen3" and "head_dim" not in config:
        yield "config.json has no head_dim"
    size = _head_size(config)
    if type(size) is not int or not 0 < size <= MAX_HEAD_SIZE or size % 2:
        yield f"its heads have {size} numbers"
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        yield "its query heads cannot share key heads evenly"


def _head_size(config: Mapping[str, Any]) -> Any:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the embedding's parameters, as newer or as older files say them; none where it is not clear."""
    newer, older = config.get("rope_parameters"), config.get("rope_scaling")
    found = newer or {"rope_theta": config.get("rope_theta"), **(older if isinstance(older, Mapping) else {})}
    is_unclear = bool(newer and older) or not isinstance(older or {}, Mapping)
    return found if isinstance(found, Mapping) and not is_unclear else {}
