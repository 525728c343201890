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


def chain(last, make):
    """Return 30,000 definitions, each of which needs the next."""
    number_of_them = 30_000
    links = {f"d{n}": make({"$ref": f"#/$defs/d{n + 1}"}) for n in range(number_of_them)}
    return {"$defs": links | {f"d{number_of_them}": last}, "$ref": "#/$defs/d0"}


LINKS = {
    "all of": lambda link: {"allOf": [link]},
    "any of": lambda link: {"anyOf": [{"$ref": "#/$defs/d0"}, link]},
    "a property": lambda link: {"type": "object", "properties": {"a": link}, "required": ["a"]},
}


@pytest.mark.parametrize("make", LINKS.values(), ids=LINKS)
def test_a_chain_of_definitions_takes_linear_time(make):
    """Seconds were tens of minutes if each definition were looked at again for each."""
    assert not is_endless(chain({}, make))
    assert is_endless(chain({"$ref": "#/$defs/d0"}, make))


def test_many_needed_properties_take_linear_time():
    parts = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(20_000)} | {"d20000": {}}
    names = {name: {"$ref": f"#/$defs/{name}"} for name in parts}
    assert not is_endless({"$defs": parts, "type": "object", "properties": names, "required": [*names]})


def test_depth_is_no_matter():
    schema = inner = {}
    for _ in range(20_000):
        inner["allOf"] = [{}]
        inner = inner["allOf"][0]
    assert not is_endless(schema)
