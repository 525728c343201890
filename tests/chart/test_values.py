"""values.yaml, its schema and the dashboard, without helm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from tools.bootstrap import ROOT
from tools.dashboard import HEIGHT, WIDTH, dashboard
from tools.release import CHART

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EVERYTHING: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "chart" / "everything.yaml").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
QUERIES = [(target["legendFormat"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every property of the schema with its path."""
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}", below
        yield from objects(below, f"{path}.{name}")


def test_the_defaults_meet_the_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)


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


def test_panels_have_numbers_of_their_own_and_never_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= WIDTH
        assert place["h"] in {1, HEIGHT}
        taken |= cells


@pytest.mark.parametrize(("legend", "query"), QUERIES)
def test_each_query_is_one_that_prometheus_can_answer_sensibly(legend: str, query: str):
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing)
    for metric in re.findall(r"rate\(([a-z0-9_:]+)", query):
        assert metric.endswith(("_total", "_bucket", "_count")), "rate of something that is no counter"
    if "histogram_quantile" in query:
        assert re.search(r"sum by \(le\b", query), "the buckets' bound must survive the sum"
    for label in re.findall(r"{{(\w+)}}", legend):
        grouped = re.search(r"sum by \(([^)]*)\)", query)
        assert grouped is None or label in re.split(r",\s*", grouped[1]), (
            "the legend shows a label that the sum dropped"
        )


def test_every_metric_of_ours_is_one_that_operator_or_gateway_publishes():
    sources = "".join(path.read_text() for part in ("operator", "gateway") for path in (ROOT / part).rglob("*.py"))
    declared = set(re.findall(r'"(dormouse_[a-z_]+)"', sources))
    shown = {name for _, query in QUERIES for name in re.findall(r"\bdormouse_[a-z_]+", query)}
    assert [name for name in shown if re.sub(r"_(total|bucket|count|sum)$", "", name) not in declared] == []


def test_no_data_source_is_written_into_the_dashboard():
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
