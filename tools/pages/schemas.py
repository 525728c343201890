"""JSON schemas as rows: what a value may be, told in a few words. Used for the custom resource and for the chart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field or value. `path` is dotted; [] stands for any item of a list."""

    path: str
    schema: Schema

    @property
    def description(self) -> str:
        """Return what it says of itself, "" if nothing."""
        return str(self.schema.get("description", ""))

    @property
    def kind(self) -> str:
        """Return its type in a word or two."""
        return kind_of(self.schema)

    @property
    def allowed(self) -> str:
        """Return its values or bounds, "" if any will do."""
        return allowed_in(self.schema)


def fields(schema: Schema, path: str) -> Iterator[Field]:
    """Yield every field below a schema, a parent before its children."""
    for name, below in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield Field(here, below)
        yield from fields(below, here)
        items = below.get("items")
        if isinstance(items, Mapping):
            yield from fields(items, f"{here}[]")


def kind_of(schema: Schema) -> str:
    """Return a schema's type in a word or two."""
    if schema.get("x-kubernetes-int-or-string"):
        return "number or string"
    if "items" in schema:
        return f"list of {kind_of(schema['items'])}s"
    if isinstance(below := schema.get("additionalProperties"), Mapping) and "properties" not in schema:
        return f"map to {kind_of(below)}s"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(schema.get("format", kind))


def allowed_in(schema: Schema) -> str:
    """Return the values or bounds of a schema, "" if any will do."""
    if "enum" in schema:
        return ", ".join(str(value) or '""' for value in schema["enum"])
    least, most = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if above is True:
        return f"above {least}" + ("" if most is None else f", to {most}")
    if most is None:
        return "" if least is None else f"{least} and more"
    return f"to {most}" if least is None else f"{least} to {most}"


def as_written(value: object) -> str:
    """Return a default as one would write it, "" for what is empty."""
    if value in (None, "", [], {}):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
