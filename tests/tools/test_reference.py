"""The reference: it is up to date, and whatever it lists is described."""

from __future__ import annotations

import argparse

import pytest

import dormouse_gateway.settings as gateway
import dormouse_operator.settings as operator
from dormouse_gateway.__main__ import command_line as gateway_flags
from dormouse_worker.front.flags.settings import command_line as worker_flags
from tools.pages import chart, programs, protos, resource
from tools.pages.__main__ import FOLDER, pages
from tools.pages.schemas import Field, allowed_in, as_written, fields, kind_of
from tools.pages.tables import code, escaped

PAGES = pages()
COMMENTED = [one for file in protos.files() for one in protos.all_commented(file)]
LEAST = 4  # letters of a description: "seed" says nothing, "bytes" does


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_it_is_made_from(name: str):
    path = FOLDER / name
    assert path.is_file(), "run: python -m tools.pages"
    assert path.read_text("utf-8") == PAGES[name], "run: python -m tools.pages"


def test_no_page_is_left_over():
    assert {path.name for path in FOLDER.iterdir()} == PAGES.keys()


@pytest.mark.parametrize("module", [gateway, operator], ids=["gateway", "operator"])
def test_every_variable_that_a_program_reads_is_described(module):
    described = {one.name: one.what for one in programs.variables(module) if one.name.startswith("DORMOUSE_")}
    assert described.keys() == programs.read_by(module)
    assert [name for name, what in described.items() if len(what) < LEAST] == []


@pytest.mark.parametrize("parser", [worker_flags(), gateway_flags()], ids=lambda parser: parser.prog)
def test_every_flag_is_described(parser: argparse.ArgumentParser):
    assert len(programs.flags(parser)) > 2
    assert [one.option_strings for one in programs.flags(parser) if len(one.help or "") < LEAST] == []


def test_every_rpc_message_field_and_value_has_a_comment():
    assert len(COMMENTED) > 150
    assert [one.name for one in COMMENTED if len(one.comment) < LEAST] == []


def test_every_field_of_the_resource_and_every_value_of_the_chart_is_described():
    for plural in ("inferencedeployments", "gpupools", "inferenceadapters", "inferencekeys"):
        assert [one.path for one in resource.all_fields(plural) if len(one.description) < LEAST] == []
    assert [one.path for one in chart.all_values() if len(one.description) < LEAST] == []


def test_every_field_and_value_stands_in_its_page():
    pages = {
        "inferencedeployment.md": resource.all_fields("inferencedeployments"),
        "gpupool.md": resource.all_fields("gpupools"),
        "inferenceadapter.md": resource.all_fields("inferenceadapters"),
        "inferencekey.md": resource.all_fields("inferencekeys"),
        "chart.md": chart.all_values(),
    }
    for page, listed in pages.items():
        assert [one.path for one in listed if not is_named(page, one)] == []


def is_named(page: str, one: Field) -> bool:
    """Return whether a page has a field, in a row or in a heading."""
    return f"| {code(one.path)} |" in PAGES[page] or f"# {one.path}\n" in PAGES[page]


@pytest.mark.parametrize(
    ("schema", "kind", "allowed"),
    [
        ({"type": "integer", "format": "int32", "minimum": 1, "maximum": 9}, "int32", "1 to 9"),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1}, "number", "above 0, to 1"),
        ({"type": "number", "minimum": 3}, "number", "3 and more"),
        ({"type": "integer", "maximum": 3}, "integer", "to 3"),
        ({"type": "string", "enum": ["a", ""]}, "string", 'a, ""'),
        ({"type": "array", "items": {"type": "string"}}, "list of strings", ""),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "map to strings", ""),
        ({"x-kubernetes-int-or-string": True, "minimum": 0}, "number or string", "0 and more"),
        ({"type": ["integer", "string"]}, "integer or string", ""),
    ],
)
def test_a_schema_is_told_in_a_few_words(schema, kind, allowed):
    assert (kind_of(schema), allowed_in(schema)) == (kind, allowed)


def test_fields_are_named_by_their_path_items_of_lists_too():
    below = {"type": "object", "properties": {"c": {}}}
    schema = {"properties": {"a": {"properties": {"b": {"items": below}}}}}
    assert [one.path for one in fields(schema, "spec")] == ["spec.a", "spec.a.b", "spec.a.b[].c"]
    assert Field("x", {}).description == ""


def test_what_a_description_says_ends_no_cell_and_is_no_markup():
    assert (code("a|b"), code("a_b"), code("")) == ("<code>a&#124;b</code>", "`a_b`", "")
    assert escaped("<NAME> *x*\nnext") == "&lt;NAME&gt; &#42;x&#42; next"
    assert (as_written(True), as_written(""), as_written({}), as_written("x")) == ("true", "", "", "x")
