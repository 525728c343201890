"""Arguments that are no JSON as they stand, made JSON: objects in strings, texts, values by a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dormouse_worker.front.answers.closable_json import Malformed

_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def clean(text: str) -> str:
    """Return a text without halves of surrogates, which no message can carry."""
    return text.encode("utf-8", "replace").decode()


def object_json(text: str) -> str:
    """Return the object that a string holds as JSON. Raises Malformed."""
    try:
        value = json.loads(text)
        written = _dumped(value)
    except (ValueError, RecursionError) as error:
        raise Malformed("arguments in a string are no JSON") from error
    if not isinstance(value, dict):
        raise Malformed("arguments in a string are no object")
    return written


def value_json(text: str, key: str, schema: Any) -> str:
    """Return one argument as JSON: text if the schema says string or if it is no JSON."""
    text = text.removeprefix("\n").removesuffix("\n")
    if _member(_member(_member(schema, "properties"), key), "type") != "string":
        try:
            return _dumped(json.loads(text))
        except (ValueError, RecursionError):
            pass
    return json.dumps(clean(text))


def fitting(arguments: Any, schema: Any) -> str:
    """Return an object as JSON, texts as the values that a tool's schema wants. Raises Malformed."""
    if not isinstance(arguments, Mapping):
        raise Malformed("arguments are no object")
    properties = _member(schema, "properties")
    try:
        return _dumped({key: _as_type(value, _types(_member(properties, key))) for key, value in arguments.items()})
    except (ValueError, RecursionError) as error:
        raise Malformed("arguments are no JSON") from error


def text_members(schema: Any) -> frozenset[str]:
    """Return which arguments are text, whatever stands in them."""
    properties = _member(schema, "properties")
    names = properties if isinstance(properties, Mapping) else ()
    return frozenset(name for name in names if "string" in _types(_member(properties, name)))


def _types(schema: Any) -> frozenset[str]:
    said = _member(schema, "type")
    return frozenset(name for name in (said if isinstance(said, list) else [said]) if isinstance(name, str))


def _as_type(value: Any, types: frozenset[str]) -> Any:
    if not isinstance(value, str) or not types or "string" in types:
        return value
    if value in _PYTHON_WORDS:
        return _PYTHON_WORDS[value]
    try:
        read = json.loads(value)
        _dumped(read)
    except (ValueError, RecursionError):
        return value
    return read


def _member(value: Any, key: str) -> Any:
    """Return what a schema that a caller wrote says, None if it is not of that form."""
    return value.get(key) if isinstance(value, Mapping) else None


def _dumped(value: Any) -> str:
    """Return a value as JSON. Raises ValueError for infinity and NaN, which Python reads and JSON does not know."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
