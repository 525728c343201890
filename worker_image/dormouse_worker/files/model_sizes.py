"""The sizes that config.json names, checked before anybody computes with them. Pure; knows no architecture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import ModelInvalid

NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "n_embd", "n_layer", "n_head")
# What may be null: the architecture has a value of its own then.
OPTIONAL = (
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "ffn_dim",
    "n_inner",
    "max_position_embeddings",
    "n_positions",
    "num_experts_per_tok",
)
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
    "num_nextn_predict_layers",
)
MOST_LAYERS = 10_000  # no model has so many, and who reads a model counts up to them
MOST = 2**31 - 1  # of any other size
_PARTS = "_config"  # how the names of objects within config.json end that are of a part of the model


def check_sizes(file: Path, config: Mapping[str, Any]) -> None:
    """Raise ModelInvalid, naming the field, for a size that no model can have; a field that is not there is no size."""
    text = config.get("text_config")
    for part, prefix in ((config, ""), (text, "text_config.")):
        if isinstance(part, Mapping):
            _check_part(file, part, prefix)
    for part, prefix in _parts(config):
        _check_largest(file, part, prefix)


def _check_part(file: Path, config: Mapping[str, Any], prefix: str) -> None:
    for name in (*NEEDED, *OPTIONAL):
        if name not in config:
            continue
        value = config[name]
        for size in value if isinstance(value, list) else (value,):
            if name == "num_experts_per_tok" and size == 0 and not any(config.get(field) for field in EXPERTS):
                continue  # so dense models of a family with experts say that they have none
            if not _is_size(size, or_null=name in OPTIONAL):
                allowed = "whole numbers of at least 1" + (", or null" if name in OPTIONAL else "")
                told = "null" if size is None else repr(size)
                raise ModelInvalid(f"{file}: {prefix}{name} is {told}; allowed: {allowed}; copy config.json again")


def _is_size(value: Any, *, or_null: bool) -> bool:
    if value is None:
        return or_null
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield what describes the model and each part of it, with how the names of its fields begin."""
    left = [(config, "")]
    while left:
        part, prefix = left.pop()
        yield part, prefix
        inner = ((value, f"{prefix}{name}.") for name, value in part.items() if name.endswith(_PARTS))
        left += [(value, begins) for value, begins in inner if isinstance(value, Mapping)]


def _check_largest(file: Path, config: Mapping[str, Any], prefix: str) -> None:
    for name in dict.fromkeys((*LAYERS, *NEEDED, *OPTIONAL)):
        most, value = MOST_LAYERS if name in LAYERS else MOST, config.get(name)
        for size in value if isinstance(value, list) else (value,):
            if isinstance(size, int) and size > most:
                told = f"{prefix}{name} is {str(size)[:20]}, more than any model has"
                raise ModelInvalid(f"{file}: {told}; allowed: at most {most}; copy config.json again")
