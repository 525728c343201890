"""Words in which the schemas of bodies are written: JSON Schema of the kind that `checking` checks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

MAX_NAME_CHARS = 256
BOOLEAN: Json = {"type": "boolean"}
FREE: Json = {"type": "object", "additionalProperties": True}


def fields(properties: Mapping[str, Json], *required: str, **more: Any) -> Json:
    """Return an object of these fields and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    } | more


def array(items: Json, most: int, least: int = 0) -> Json:
    """Return a list of `least` to `most` items."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def integer(least: int, most: int) -> Json:
    """Return a whole number of the range."""
    return {"type": "integer", "minimum": least, "maximum": most}


def number(least: float, most: float) -> Json:
    """Return a number of the range."""
    return {"type": "number", "minimum": least, "maximum": most}


def text(least: int = 0, most: int | None = None) -> Json:
    """Return text of so many characters."""
    return {"type": "string", "minLength": least} | ({} if most is None else {"maxLength": most})


def above_0(most: float) -> Json:
    """Return a number above 0."""
    return {"type": "number", "exclusiveMinimum": 0, "maximum": most}


def only(value: Any, why: str) -> Json:
    """Return the one value that is allowed, and why it is the only one."""
    return {"enum": [value], "description": why}


def unused(schema: Json, why: str) -> Json:
    """Return a field that is taken, and changes no answer; `why` begins after "Without effect: "."""
    return schema | {"description": f"Without effect: {why}"}


def or_null(schema: Json) -> Json:
    """Return the same, or null."""
    about = {"description": schema["description"]} if "description" in schema else {}
    return {"anyOf": [schema, {"type": "null"}]} | about


def one_of(*schemas: Json, **more: Any) -> Json:
    """Return any of these."""
    return {"anyOf": list(schemas)} | more


def kind(name: str, properties: Mapping[str, Json], *required: str) -> Json:
    """Return an object that says in `type` what it is."""
    return fields({"type": {"enum": [name]}, **properties}, "type", *required)


def request(required: Mapping[str, Json], optional: Mapping[str, Json]) -> Json:
    """Return a body's schema; null is as good as leaving an optional field out."""
    return fields(dict(required) | {name: or_null(schema) for name, schema in optional.items()}, *required)
