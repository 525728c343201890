"""Values that a structural schema (a CRD's) lets pass, for hypothesis: valid by the schema, and often odd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Schema = Mapping[str, Any]
_WIDE = 2**31 - 1  # beyond it the API server refuses format int32
_PLAIN = st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters='"\\')


def values(schema: Schema, overrides: Mapping[str, st.SearchStrategy[Any]], path: str = "") -> st.SearchStrategy[Any]:
    """Return a strategy for one schema; `overrides` replaces what stands at a path such as `.replicas`."""
    if path in overrides:
        return overrides[path]
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return _integers(schema) | _strings(schema)
    make = {"object": _objects, "array": _arrays}.get(schema["type"])
    if make:
        return make(schema, overrides, path)
    return {"integer": _integers, "number": _numbers, "string": _strings, "boolean": _booleans}[schema["type"]](schema)


def _objects(schema: Schema, overrides: Mapping[str, Any], path: str) -> st.SearchStrategy[Any]:
    fields = {name: values(inner, overrides, f"{path}.{name}") for name, inner in schema.get("properties", {}).items()}
    if "additionalProperties" in schema:
        keys = st.sampled_from(["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "pods", "odd name", "x" * 64])
        return st.dictionaries(keys, values(schema["additionalProperties"], overrides, f"{path}.*"), max_size=3)
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)


def _arrays(schema: Schema, overrides: Mapping[str, Any], path: str) -> st.SearchStrategy[Any]:
    limit = min(3, schema.get("maxItems", 3))
    return st.lists(values(schema["items"], overrides, f"{path}[]"), max_size=limit)


def _integers(schema: Schema) -> st.SearchStrategy[int]:
    low, high = schema.get("minimum", -_WIDE), schema.get("maximum", _WIDE)
    return st.sampled_from([low, high]) | st.integers(low, high)


def _numbers(schema: Schema) -> st.SearchStrategy[float]:
    low, high = schema["minimum"], schema["maximum"]
    return st.floats(low, high, exclude_min=schema.get("exclusiveMinimum", False), allow_subnormal=False)


def _strings(schema: Schema) -> st.SearchStrategy[str]:
    longest = schema.get("maxLength", 80)
    if pattern := schema.get("pattern"):
        return st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) <= longest)
    return st.text(_PLAIN, min_size=schema.get("minLength", 0), max_size=min(longest, 80))


def _booleans(_: Schema) -> st.SearchStrategy[bool]:
    return st.booleans()
