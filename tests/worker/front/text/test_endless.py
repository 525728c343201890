"""A schema that needs itself has no finite value; all others are left to the grammar's compiler."""

from __future__ import annotations

import pytest

from dormouse_worker.front.text.endless import is_endless


def needs(name, **more):
    return {"type": "object", "properties": {name: {"$ref": "#"}}, "required": [name], **more}


def refers(**defs):
    return {"$defs": defs, "$ref": "#/$defs/a"}


ITSELF = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        needs("a"),
        refers(a=ITSELF),
        refers(a={"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]}, b=ITSELF),
        refers(a={"type": "array", "items": ITSELF, "minItems": 1}),
        refers(a={"type": ["array"], "prefixItems": [{}, ITSELF], "minItems": 2}),
        refers(a={"anyOf": [ITSELF, {"allOf": [{"type": "object"}, ITSELF]}]}),
        {"definitions": {"a/b~": needs("x") | {"properties": {"x": {"$ref": "#/definitions/a~1b~0"}}}}}
        | {"oneOf": [{"$ref": "#/definitions/a~1b~0"}]},
    ],
    ids=str,
)
def test_what_needs_itself_never_ends(schema):
    assert is_endless(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["b", 1]},
        needs("a", type=["object", "null"]),
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"const": 1, "$ref": "#"},
        refers(a={"anyOf": [ITSELF, {"type": "null"}]}),
        refers(a={"type": "array", "items": ITSELF}),
        refers(a={"type": "array", "items": ITSELF, "minItems": 0}),
        refers(a={"type": "array", "prefixItems": [{}, ITSELF], "minItems": 1}),
        refers(a={"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 9}, b={"type": "null"}),
        refers(),
        {"$ref": "http://example.com"},
        {"$ref": "#name"},
        {"$ref": 1, "allOf": 1, "anyOf": {}, "required": "a", "type": "object", "properties": 1},
    ],
    ids=str,
)
def test_what_may_end_is_left_alone(schema):
    assert not is_endless(schema)


def test_many_definitions_take_no_time():
    chain = {f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}]} for number in range(500)}
    assert not is_endless({"$defs": chain | {"d500": {}}, "$ref": "#/$defs/d0"})
