"""Objects are closed where one part of a schema tells their members, and a schema stays one that texts satisfy."""

from __future__ import annotations

import json

import jsonschema
import pytest

from dormouse_worker.common.grammar import compile_grammar, make_tokenizer
from dormouse_worker.front.testing import EOS, write_model
from dormouse_worker.front.text.closed_objects import closed
from dormouse_worker.front.text.grammar_text import to_text

A = {"properties": {"a": {"type": "null"}}, "required": ["a"]}
B = {"properties": {"b": {"type": "null"}}, "required": ["b"]}
BASE = {"$defs": {"base": A, "alone": B}}
REF, ALONE = {"$ref": "#/$defs/base"}, {"$ref": "#/$defs/alone"}
TWO = {"allOf": [REF, B]}


@pytest.mark.parametrize(
    ("schema", "fits", "has_more"),
    [
        (A, '{"a": null}', '{"a": null, "x": null}'),
        ({"type": "object"}, "{}", '{"x": null}'),
        ({"type": "object", "anyOf": [A, B]}, '{"b": null}', '{"b": null, "x": null}'),
        ({"oneOf": [{"type": "null"}, {**A, "type": "object"}]}, '{"a": null}', '{"a": null, "x": null}'),
        ({"type": "object", "allOf": [A]}, '{"a": null}', '{"a": null, "x": null}'),
        ({**BASE, "type": "object", **REF}, '{"a": null}', '{"a": null, "x": null}'),
        ({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["b"]}]}, '{"b": 1}', '{"b": 1, "x": 1}'),
        ({**A, "anyOf": [{"type": "object", "required": ["a"]}]}, '{"a": null}', '{"a": null, "x": null}'),
        ({"items": A}, '[{"a": null}]', '[{"a": null, "x": null}]'),
        ({"prefixItems": [A]}, '[{"a": null}]', '[{"a": null, "x": null}]'),
        ({"additionalProperties": A}, '{"k": {"a": null}}', '{"k": {"a": null, "x": null}}'),
        (
            {"allOf": [{"properties": {"c": A}}, A]},
            '{"c": {"a": null}, "a": null}',
            '{"c": {"a": null, "x": 1}, "a": null}',
        ),
        ({**BASE, "properties": {"c": ALONE, "d": TWO}}, '{"c": {"b": null}}', '{"c": {"b": null, "x": 1}}'),
        # a property of this name says nothing of the object around it
        ({"properties": {"properties": {"type": "null"}}}, '{"properties": null}', '{"properties": null, "x": null}'),
    ],
    ids=str,
)
def test_an_object_has_the_members_that_are_told(schema, fits, has_more, takes):
    assert takes(schema, fits)
    assert not takes(schema, has_more)


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"allOf": [A, B]}, '{"a": null, "b": null}'),
        ({**A, "anyOf": [B, {"type": "object"}]}, '{"a": null, "b": null}'),
        ({**BASE, **TWO}, '{"a": null, "b": null}'),
        ({**BASE, "properties": {"b": {}}, **REF}, '{"b": null, "a": null}'),
        ({**BASE, "allOf": [{"anyOf": [REF, {"type": "object"}]}, B]}, '{"a": null, "b": null}'),
        ({**A, "additionalProperties": {"type": "null"}}, '{"a": null, "x": null}'),
        ({"patternProperties": {"^x": {"type": "null"}}, "type": "object"}, '{"x": null}'),
    ],
    ids=str,
)
def test_an_object_that_several_parts_tell_of_stays_open(schema, fits, takes):
    assert takes(schema, fits)


@pytest.mark.parametrize("word", ["const", "enum", "default", "examples"])
def test_values_are_no_schemas(word):
    value = {"type": "object", "properties": {}}
    schema = {word: value if word in {"const", "default"} else [value]}
    assert closed(schema) == schema


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (1, 1),
        (True, True),
        ({"allOf": 1, "items": [A], "anyOf": [1]}, {"allOf": 1, "items": [A], "anyOf": [1]}),
        ({"properties": 1}, {"properties": 1, "additionalProperties": False}),
        ({"$ref": 1, "allOf": [{"$ref": "x"}]}, {"$ref": 1, "allOf": [{"$ref": "x"}]}),
    ],
)
def test_what_is_no_schema_is_left_to_the_compiler(schema, made):
    assert closed(schema) == made


@pytest.fixture(scope="module")
def takes(tmp_path_factory):
    """Return whether a closed schema takes a text, which the schema itself has to take."""
    tokenizer = make_tokenizer(write_model(tmp_path_factory.mktemp("model")) / "tokenizer.json", [EOS])
    asked = {"kind": "json_schema", "disable_any_whitespace": False, "disable_additional_properties": True}

    def check(schema, text):
        jsonschema.validate(json.loads(text), schema)
        matcher = compile_grammar(tokenizer, to_text({**asked, "value": json.dumps(schema)}))
        ids = tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return check
