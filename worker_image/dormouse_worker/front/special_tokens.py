"""The named special tokens of a model (bos, eos, …), as its chat template wants them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def special_tokens(tokenizer_config: Mapping[str, Any], special_tokens_map: Mapping[str, Any]) -> dict[str, str]:
    """Return name → text of the tokens that the model has; tokenizer_config.json goes before the older file."""
    found = {name: _text(tokenizer_config.get(name) or special_tokens_map.get(name)) for name in NAMES}
    extra = tokenizer_config.get("model_specific_special_tokens") or tokenizer_config.get("extra_special_tokens")
    if isinstance(extra, Mapping):
        found |= {str(name): _text(value) for name, value in extra.items()}
    return {name: text for name, text in found.items() if text}


def _text(value: Any) -> str:
    """Return a token's text; files hold it as a string or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""
