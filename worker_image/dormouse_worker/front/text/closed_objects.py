"""JSON Schemas whose objects have the members that they say, and no others. Pure.

`additionalProperties: false` knows only the properties beside it. So where several parts of a schema tell members of
one object (allOf, or properties beside anyOf), nothing is closed: each part would forbid what the others need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_ONE = {"items", "additionalProperties"}
_EITHER = ("anyOf", "oneOf")
_PARTS = ("allOf", *_EITHER)


def closed(schema: Any) -> Any:
    """Return the schema with `additionalProperties: false` where one part alone tells an object's members."""
    joined = {id(_target(schema, ref)) for part in _all_within(schema) for ref in _joined_refs(part)}
    return _closed(schema, joined)


def _closed(schema: Any, joined: set[int]) -> Any:
    if not isinstance(schema, dict):
        return schema
    tellers = list(_tellers(schema))
    if id(schema) in joined or len(tellers) > 1:
        return _inside(schema, lambda part: _open(part, joined), joined)
    if tellers and tellers[0] != "properties":
        return _inside(schema, lambda part: _closed(part, joined), joined)
    made = _inside(schema, lambda part: _open(part, joined), joined)
    is_object = "properties" in schema or schema.get("type") == "object"
    if is_object and "additionalProperties" not in schema and "patternProperties" not in schema:
        made["additionalProperties"] = False
    return made


def _open(schema: Any, joined: set[int]) -> Any:
    """Return a part of an object's schema, as open as it is; what is within its members is closed."""
    return _inside(schema, lambda part: _open(part, joined), joined) if isinstance(schema, dict) else schema


def _inside(schema: Schema, of_part: Callable[[Any], Any], joined: set[int]) -> dict[str, Any]:
    """Return a schema with its own parts as `of_part` makes them, and other values' schemas closed."""
    made = dict(schema)
    for word, value in schema.items():
        if word in _PARTS and isinstance(value, list):
            made[word] = [of_part(part) for part in value]
        elif word in _BY_NAME and isinstance(value, dict):
            made[word] = {name: _closed(part, joined) for name, part in value.items()}
        elif word == "prefixItems" and isinstance(value, list):
            made[word] = [_closed(part, joined) for part in value]
        elif word in _ONE:
            made[word] = _closed(value, joined)
    return made


def _tellers(schema: Schema) -> Iterator[str]:
    """Yield what tells an object's members: words of the schema, `allOf` once for each of its parts."""
    yield from (word for word in ("properties", "patternProperties", "$ref") if word in schema)
    for word in _PARTS:
        telling = [part for part in _list(schema, word) if isinstance(part, dict) and any(_tellers(part))]
        yield from [word] * (len(telling) if word == "allOf" else bool(telling))


def _joined_refs(schema: Schema) -> Iterator[str]:
    """Yield the references among the parts of an object that several parts tell of."""
    if len(list(_tellers(schema))) > 1:
        yield from _own_refs(schema)


def _own_refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(ref := schema.get("$ref"), str):
            yield ref
        for word in _PARTS:
            for part in _list(schema, word):
                yield from _own_refs(part)


def _all_within(schema: Any) -> Iterator[Schema]:
    within = [schema]
    while within:
        value = within.pop()
        if isinstance(value, dict):
            yield value
            within.extend(value.values())
        elif isinstance(value, list):
            within.extend(value)


def _target(schema: Any, ref: str) -> Any:
    """Return what a reference within the schema names; None if it names nothing."""
    for step in ref.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        schema = schema.get(name) if isinstance(schema, dict) else None
    return schema


def _list(schema: Schema, word: str) -> list[Any]:
    value = schema.get(word)
    return value if isinstance(value, list) else []
