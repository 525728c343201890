"""docs/reference/chart.md: every value of the chart with its default, from values.yaml and its schema."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tools.pages.schemas import Field, Schema, as_written, fields
from tools.pages.tables import code, escaped, page, table
from tools.release import CHART


def schema() -> Schema:
    """Return the schema of the values."""
    found: Schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    return found


def all_values() -> list[Field]:
    """Return the values, groups of values included."""
    return list(fields(schema(), ""))


def text() -> str:
    """Return the page."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    groups = {name: below for name, below in schema()["properties"].items() if "properties" in below}
    single = [field for field in all_values() if field.path.partition(".")[0] not in groups]
    parts = [f"## {name}\n\n{_group(name, below, defaults)}" for name, below in groups.items()]
    return page("Chart values", _INTRODUCTION, _table(single, defaults), *parts)


def _group(name: str, below: Schema, defaults: Any) -> str:
    return f"{escaped(below['description'])}\n\n{_table(list(fields(below, name)), defaults)}"


def _table(values: list[Field], defaults: Any) -> str:
    rows = (
        (code(one.path), _kind(one), code(_default(one, defaults)), escaped(one.allowed), escaped(one.description))
        for one in values
    )
    return table(("Value", "Type", "Default", "Allowed", "What"), rows)


def _kind(one: Field) -> str:
    return "" if "properties" in one.schema else one.kind


def _default(one: Field, defaults: Any) -> str:
    """Return what values.yaml says, "" for groups and for what stands in items of lists."""
    found = defaults
    for name in one.path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return "" if "properties" in one.schema else as_written(found)


_INTRODUCTION = """Every value of the chart. An unknown value is an error. No value is required; an empty cell under
*Default* is an empty text, list or map. [Install](../install.md) explains them by purpose."""
