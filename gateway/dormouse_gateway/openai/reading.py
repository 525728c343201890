"""From a body's bytes to a checked JSON object. Pure; what is wrong is an ApiError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from dormouse_gateway.openai.checking import Schema, check
from dormouse_gateway.openai.errors import ApiError

_NONE: Mapping[str, str] = {}
MAX_DEPTH = 30  # a level of JSON in tools takes three of protobuf, which allows a hundred


def read_body(raw: bytes, schema: Schema, refused: Mapping[str, str] = _NONE) -> dict[str, Any]:
    """Return the body's fields without those that are null; `refused` says of some why they are not taken.

    Raises ApiError.
    """
    value = parse_json(raw)
    for name in value if isinstance(value, dict) else ():
        if name in refused:
            raise ApiError(400, f"{name} is not supported: {refused[name]}", param=name, code="unsupported_parameter")
    check(value, schema)
    return {name: item for name, item in value.items() if item is not None}


def parse_json(raw: bytes) -> Any:
    """Return any JSON value. Raises ApiError for what is none, or is nested too deep."""
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # also what is no UTF-8, and numbers of thousands of digits
        raise ApiError(400, f"the body is no JSON: {error}") from error
    _check_depth(value)
    return value


def parse_arguments(text: str) -> Any:
    """Return the arguments of a tool's call as an object, which templates want; as they are if they are none.

    A model wrote them, and not always well: the conversation must go on all the same.
    """
    try:
        value = parse_json(text.encode())
        check(value, {"type": "object"})
    except ApiError:
        return text
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise _too_deep()


def _children(value: Any) -> list[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in found if isinstance(child, (dict, list))]


def _too_deep() -> ApiError:
    return ApiError(400, f"the body is nested deeper than {MAX_DEPTH} levels")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
