"""values.yaml and its schema, without helm."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml

from tools.bootstrap import ROOT
from tools.release import CHART

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EVERYTHING: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "chart" / "everything.yaml").read_text())


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every property of the schema with its path."""
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}", below
        yield from objects(below, f"{path}.{name}")


def test_the_defaults_meet_the_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)


def test_a_value_whose_default_is_null_may_be_given_as_null():
    """Older helm removes what a user sets to null before it asks the schema, whatever the default is."""

    def nulls(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, value in values.items():
            if value is None:
                yield (*path, name)
            elif isinstance(value, dict):
                yield from nulls(value, (*path, name))

    found = list(nulls(VALUES))
    assert ("mtls", "enabled") in found
    for *path, name in found:
        values = copy.deepcopy(VALUES)
        del functools.reduce(dict.__getitem__, path, values)[name]
        jsonschema.validate(values, SCHEMA)


def test_every_value_is_described():
    assert [path for path, schema in objects(SCHEMA) if not schema.get("description", "").endswith(".")] == []


def test_every_group_of_values_refuses_unknown_ones():
    groups = [("", SCHEMA), *((path, schema) for path, schema in objects(SCHEMA) if "properties" in schema)]
    assert [path for path, schema in groups if schema.get("additionalProperties") is not False] == []


def test_values_and_schema_name_the_same_things():
    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
        known = schema.get("properties")
        if known is None:
            return
        yield from (f"{path}.{name}" for name in values.keys() ^ (known.keys() - {"global"}))
        for name in values.keys() & known.keys():
            if isinstance(values[name], dict):
                yield from compare(values[name], known[name], f"{path}.{name}")

    assert list(compare(VALUES, SCHEMA, "")) == []


def test_the_tests_try_every_value():
    def untried(values: dict[str, Any], tried: dict[str, Any], path: str) -> Iterator[str]:
        for name, value in values.items():
            if isinstance(value, dict) and value:
                yield from untried(value, tried.get(name, {}), f"{path}.{name}")
            elif tried.get(name, value) == value:
                yield f"{path}.{name}"

    jsonschema.validate(EVERYTHING, SCHEMA)
    assert list(untried(VALUES, EVERYTHING, "")) == []
