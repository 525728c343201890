"""Which JSON Schemas only endless values satisfy: those that need themselves. Pure, and careful: unknown words end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MISSING = object()


def is_endless(schema: Any) -> bool:
    """Return whether no finite value can satisfy a schema. What it refers to elsewhere counts as finite."""
    targets = {ref: _target(schema, ref) for ref in set(_refs(schema))}
    finite = {ref for ref, target in targets.items() if target is _MISSING}
    while more := {ref for ref in targets.keys() - finite if _ends(targets[ref], finite)}:
        finite |= more
    return not _ends(schema, finite)


def _ends(schema: Any, finite: set[str]) -> bool:
    """Return whether a value can end, where references to these do."""
    if not isinstance(schema, dict):
        return True
    if "const" in schema or "enum" in schema:
        return True
    if isinstance(ref := schema.get("$ref"), str) and ref not in finite:
        return False
    if not all(_ends(one, finite) for one in _list(schema, "allOf")):
        return False
    for alternatives in (_list(schema, "anyOf"), _list(schema, "oneOf")):
        if alternatives and not any(_ends(one, finite) for one in alternatives):
            return False
    return all(_ends(one, finite) for one in _needed(schema))


def _needed(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield the schemas of what a value must have within."""
    kind = schema.get("type")
    properties, least = schema.get("properties"), schema.get("minItems")
    if kind in ("object", ["object"]) and isinstance(properties, dict):
        yield from (properties.get(name) for name in _list(schema, "required") if isinstance(name, str))
    if kind in ("array", ["array"]) and isinstance(least, int):
        first = _list(schema, "prefixItems")
        yield from first[: max(0, least)]
        if least > len(first):
            yield schema.get("items")


def _refs(schema: Any) -> Iterator[str]:
    """Yield what a schema refers to, anywhere within it."""
    within = [schema]
    while within:
        value = within.pop()
        if isinstance(value, dict):
            if isinstance(ref := value.get("$ref"), str):
                yield ref
            within.extend(value.values())
        elif isinstance(value, list):
            within.extend(value)


def _target(schema: Any, ref: str) -> Any:
    """Return what a reference within the schema names."""
    if not ref.startswith("#"):
        return _MISSING
    found = schema
    for step in ref[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name, _MISSING) if isinstance(found, dict) else _MISSING
    return found if ref == "#" or ref.startswith("#/") else _MISSING


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []
