"""A soft prompt's `adapter_config.json` as peft writes it: how many vectors stand in front of each prompt. Pure.

Of PREFIX_TUNING a vector is the keys and values of one token, for all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dormouse_worker.common.errors import AdapterInvalid

_PREFIX = "PREFIX_TUNING"
PEFT_TYPES = ("PROMPT_TUNING", "P_TUNING", _PREFIX)  # of all peft saves what an encoder made, and not the encoder
MAX_TOKENS = 8192
MAX_SIZE = 1 << 16
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class KeyShape:
    """What a base keeps of a token: a key and a value for each layer and head."""

    num_layers: int
    num_kv_heads: int
    head_size: int

    @property
    def size(self) -> int:
        """Return how many numbers that is."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_size

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.num_layers} layers of {self.num_kv_heads} heads of {self.head_size}"


@dataclass(frozen=True, slots=True)
class SoftPromptConfig:
    """What a soft prompt asks for."""

    peft_type: str
    num_tokens: int
    size: int  # of a vector: of an embedded token, or what `keys` says
    keys: KeyShape | None = None  # the vectors are keys and values; None = embedded tokens


def parse_soft_prompt(config: Mapping[str, Any]) -> SoftPromptConfig:
    """Return what it says. Raises AdapterInvalid naming the field, its value and what is allowed."""
    if modules := config.get("modules_to_save"):
        raise AdapterInvalid(
            f"modules_to_save is {modules!r}; whole modules are not replaced; merge them into the base model"
        )
    if (submodules := config.get("num_transformer_submodules")) not in (None, 1):
        raise AdapterInvalid(f"num_transformer_submodules is {submodules!r}; only decoders, of 1, are computed here")
    num_tokens = _number("num_virtual_tokens", config.get("num_virtual_tokens"), MAX_TOKENS)
    size, kind = _number("token_dim", config.get("token_dim"), MAX_SIZE), config["peft_type"]
    if kind != _PREFIX:
        return SoftPromptConfig(kind, num_tokens, size)
    num_layers = _number("num_layers", config.get("num_layers"), MAX_LAYERS)
    num_heads = _number("num_attention_heads", config.get("num_attention_heads"), size)
    keys = KeyShape(num_layers, num_heads, size // num_heads)
    return SoftPromptConfig(kind, num_tokens, keys.size, keys)


def _number(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise AdapterInvalid(f"{name} is {value!r}; allowed are 1 to {most}")
    return value
