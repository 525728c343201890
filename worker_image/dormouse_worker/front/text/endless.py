"""Which JSON Schemas only endless values satisfy: those that need themselves. Pure, and careful: unknown words end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from dormouse_worker.front.text.endings import Clause, what_ends

_MISSING = object()


def is_endless(schema: Any) -> bool:
    """Return whether no finite value can satisfy a schema. What it refers to elsewhere counts as finite."""
    return id(schema) not in what_ends(_clauses(schema))


def _clauses(schema: Any) -> Iterator[Clause]:
    """Yield when each value within a schema ends, by its id, as if it were a schema; most are."""
    within = [schema]
    while within:
        value = within.pop()
        if isinstance(value, dict):
            yield from _of_an_object(value, schema)
            within.extend(value.values())
        else:
            yield id(value), ()
            within.extend(value if isinstance(value, list) else ())


def _of_an_object(schema: dict[str, Any], whole: Any) -> Iterator[Clause]:
    """Yield when an object that is a schema ends."""
    if "const" in schema or "enum" in schema:
        yield id(schema), ()
        return
    body: list[Hashable] = [id(part) for part in (*_list(schema, "allOf"), *_needed(schema))]
    if isinstance(ref := schema.get("$ref"), str) and (target := _target(whole, ref)) is not _MISSING:
        body.append(id(target))
    for alternatives in (_list(schema, "anyOf"), _list(schema, "oneOf")):
        if alternatives:
            any_of_them = "any", id(alternatives)
            body.append(any_of_them)
            yield from ((any_of_them, (id(one),)) for one in alternatives)
    yield id(schema), body


def _needed(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield the schemas of what a value must have within."""
    kind = schema.get("type")
    properties, least = schema.get("properties"), schema.get("minItems")
    if kind in ("object", ["object"]) and isinstance(properties, dict):
        required = {name for name in _list(schema, "required") if isinstance(name, str)}
        yield from (properties[name] for name in required if name in properties)
    if kind in ("array", ["array"]) and isinstance(least, int):
        first = _list(schema, "prefixItems")
        yield from first[: max(0, least)]
        if least > len(first) and "items" in schema:
            yield schema["items"]


def _target(schema: Any, ref: str) -> Any:
    """Return what a reference within the schema names."""
    if ref != "#" and not ref.startswith("#/"):
        return _MISSING
    found = schema
    for step in ref[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name, _MISSING) if isinstance(found, dict) else _MISSING
    return found


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []
