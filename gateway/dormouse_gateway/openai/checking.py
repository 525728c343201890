"""Checks a JSON value against the part of JSON Schema that our own schemas use. Pure.

The same schemas stand in the OpenAPI document: what it says is what is checked.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from dormouse_gateway.openai.errors import ApiError, refuse

Schema = Mapping[str, Any]
_SHOWN_CHARS = 60
_MOST = sys.float_info.max  # what a Struct can hold
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),  # noqa: PLW0108  # it stands further down
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def check(value: Any, schema: Schema, path: str = "") -> None:
    """Raise the ApiError that names the first field that does not fit."""
    if "anyOf" in schema:
        _check_any_of(value, schema["anyOf"], path)
        return
    types = _types(schema)
    if types and not any(_TYPES[name](value) for name in types):
        raise refuse(path or "body", shown(value), " or ".join(_article(name) for name in types))
    if "enum" in schema and value not in schema["enum"]:
        raise refuse(path, shown(value), _choices(schema))
    if isinstance(value, str):
        _check_text(value, schema, path)
    elif isinstance(value, list):
        _check_array(value, schema, path)
    elif isinstance(value, dict):
        _check_object(value, schema, path)
    elif _is_number(value):
        _check_number(value, schema, path)


def shown(value: Any) -> str:
    """Return the value as a message shows it: short."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _check_any_of(value: Any, schemas: list[Schema], path: str) -> None:
    """Check against the first one of the value's type; where none is, all their types are allowed."""
    fitting = [schema for schema in schemas if any(_TYPES[name](value) for name in _types(schema))]
    if isinstance(value, dict) and fitting:
        fitting = _of_kind(value, fitting, path)
    if not fitting:
        names = dict.fromkeys(name for schema in schemas for name in _types(schema))
        raise refuse(path, shown(value), " or ".join(_article(name) for name in names))
    errors = []
    for schema in [schema for schema in fitting if _first_item_fits(value, schema)] or fitting:
        try:
            check(value, schema, path)
        except ApiError as error:
            errors.append(error)
        else:
            return
    raise max(errors, key=_depth)  # the schema that was meant fits furthest; of equal ones the first


def _of_kind(value: dict[str, Any], schemas: list[Schema], path: str) -> list[Schema]:
    """Return the schemas of the value's `type`, where it tells them apart; raise where it is none of theirs."""
    kinds = [schema.get("properties", {}).get("type", {}).get("enum") for schema in schemas]
    if len(schemas) == 1 or None in kinds:
        return schemas
    if "type" not in value:
        return [schema for schema in schemas if "type" not in schema["required"]] or schemas[:1]
    found = [schema for schema, names in zip(schemas, kinds, strict=True) if value["type"] in names]
    if not found:
        allowed = ", ".join(shown(name) for names in kinds for name in names)
        raise refuse(_join(path, "type"), shown(value["type"]), allowed)
    return found


def _depth(error: ApiError) -> int:
    return sum(map((error.param or "").count, ".["))


def _first_item_fits(value: Any, schema: Schema) -> bool:
    """Return whether a list is of the schema's kind; anything else is."""
    items = schema.get("items", {}) if isinstance(value, list) and value else {}
    return any(_TYPES[name](value[0]) for name in _types(items)) if items else True


def _check_number(value: float, schema: Schema, path: str) -> None:
    least, above, most = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    fits = (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)
    if not fits:
        raise refuse(path, shown(value), _range(least, above, most))


def _range(least: float | None, above: float | None, most: float | None) -> str:
    """Return the bounds in words; there is at least one."""
    if least is None and above is None:
        return f"at most {most}"
    low = f"from {least:g}" if above is None else f"above {above:g}"
    return low if most is None else f"{low} to {most}"


def _check_text(value: str, schema: Schema, path: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refuse(path, "no text", "UTF-8, without single surrogates") from error
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    if not least <= len(value) <= most:
        raise refuse(
            path, f"{len(value)} characters", f"at least {least}" if most == math.inf else f"{least} to {most}"
        )
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise refuse(path, shown(value), f"what matches {schema['pattern']}")


def _check_array(value: list[Any], schema: Schema, path: str) -> None:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise refuse(path, f"{len(value)} items", f"{least} to {most}")
    items = schema.get("items", {})
    if items.get("type") == "integer":
        index = _first_misfit(value, items["minimum"], items["maximum"])
        if index is not None:
            check(value[index], items, f"{path}[{index}]")
        return
    for index, item in enumerate(value):
        check(item, items, f"{path}[{index}]")


def _first_misfit(numbers: list[Any], least: int, most: int) -> int | None:
    """Return where the first is that is no integer of the range: a prompt can be a million of them."""
    is_integer = _TYPES["integer"]
    for index, number in enumerate(numbers):
        if not ((type(number) is int or is_integer(number)) and least <= number <= most):
            return index
    return None


def _check_object(value: dict[str, Any], schema: Schema, path: str) -> None:
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", math.inf)
    if not least <= len(value) <= most:
        raise refuse(path, f"{len(value)} entries", f"{least} to {most}" if least else f"at most {most}")
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            _check_kind(value, properties, path)
            raise refuse(_join(path, name), "missing", _wanted(properties[name]))
    for name, item in value.items():
        where = _join(path, name)
        _check_text(name, schema.get("propertyNames", {}), where)
        if name in properties:
            check(item, properties[name], where)
        elif others is False:
            raise ApiError(400, f"{where} is not supported", param=where, code="unsupported_parameter")
        else:
            check(item, {} if others is True else others, where)


def _check_kind(value: dict[str, Any], properties: Schema, path: str) -> None:
    """Raise for what is another kind of thing: that says more than what it lacks."""
    for name, item in value.items():
        schema = properties.get(name, {})
        if any("enum" in choice for choice in (schema, *schema.get("anyOf", ()))):
            check(item, schema, _join(path, name))


def _wanted(schema: Schema) -> str:
    """Return what has to be there, in words."""
    if "enum" in schema:
        return _choices(schema)
    return str(schema.get("description", "")) or " or ".join(_article(name) for name in _types(schema))


def _choices(schema: Schema) -> str:
    """Return what is allowed in words; where it is one value only, also why."""
    choices = ", ".join(shown(choice) for choice in schema["enum"])
    why = f". {schema['description']}" if len(schema["enum"]) == 1 and "description" in schema else ""
    return choices + why


def _join(path: str, name: str) -> str:
    """Return where the field is, in short: the client chose its name, which may be long, or no text at all."""
    plain = shown(name)[1:-1]
    return f"{path}.{plain}" if path else plain


def _types(schema: Schema) -> tuple[str, ...]:
    """Return the types that a value may have, all of them where the schema says nothing."""
    if "anyOf" in schema:
        return tuple(dict.fromkeys(name for choice in schema["anyOf"] for name in _types(choice)))
    if "enum" in schema:
        return tuple(name for name, fits in _TYPES.items() if any(fits(choice) for choice in schema["enum"]))
    return (schema["type"],) if "type" in schema else tuple(_TYPES)


def _article(name: str) -> str:
    return name if name == "null" else f"an {name}" if name[0] in "aio" else f"a {name}"


def _is_number(value: Any) -> bool:
    """Return whether it is a number that a double can hold; JSON's 1e999 is read as infinity."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST <= value <= _MOST
