"""The named special tokens of a model (bos, eos, …), as its chat template wants them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUFFIX = "_token"
NAMED_EXTRAS = ("model_specific_special_tokens", "extra_special_tokens")


def special_tokens(tokenizer_config: Mapping[str, Any], special_tokens_map: Mapping[str, Any]) -> dict[str, str]:
    """Return name → text of the tokens that the model has; tokenizer_config.json goes before the older file.

    Every field whose name ends in `_token` and whose value is a text names one, and so does each of the named extras.
    """
    known = {**special_tokens_map, **{name: value for name, value in tokenizer_config.items() if value is not None}}
    found = {name: _text(value) for name, value in known.items() if name.endswith(SUFFIX)}
    for field in NAMED_EXTRAS:
        extras = known.get(field)
        if isinstance(extras, Mapping):
            found |= {str(name): _text(value) for name, value in extras.items()}
    return {name: text for name, text in found.items() if text}


def _text(value: Any) -> str:
    """Return a token's text; files hold it as a string or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""
