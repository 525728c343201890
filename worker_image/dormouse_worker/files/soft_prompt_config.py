"""A soft prompt's `adapter_config.json` as peft writes it: how many vectors stand in front of each prompt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dormouse_worker.common.errors import AdapterInvalid

PEFT_TYPES = ("PROMPT_TUNING", "P_TUNING")  # of both peft saves what its encoder made, and not the encoder
MAX_TOKENS = 8192
MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class SoftPromptConfig:
    """What a soft prompt asks for."""

    peft_type: str
    num_tokens: int
    size: int  # of a vector, as of an embedded token


def parse_soft_prompt(config: Mapping[str, Any]) -> SoftPromptConfig:
    """Return what it says. Raises AdapterInvalid naming the field, its value and what is allowed."""
    if modules := config.get("modules_to_save"):
        raise AdapterInvalid(
            f"modules_to_save is {modules!r}; whole modules are not replaced; merge them into the base model"
        )
    if (submodules := config.get("num_transformer_submodules")) not in (None, 1):
        raise AdapterInvalid(f"num_transformer_submodules is {submodules!r}; only decoders, of 1, are computed here")
    return SoftPromptConfig(
        peft_type=config["peft_type"],
        num_tokens=_number("num_virtual_tokens", config.get("num_virtual_tokens"), MAX_TOKENS),
        size=_number("token_dim", config.get("token_dim"), MAX_SIZE),
    )


def _number(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise AdapterInvalid(f"{name} is {value!r}; allowed are 1 to {most}")
    return value
