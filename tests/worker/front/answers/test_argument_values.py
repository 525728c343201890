"""Arguments become JSON: what stands in strings, texts by a schema, and nothing that JSON does not know."""

from __future__ import annotations

import pytest

from dormouse_worker.front.answers.argument_values import clean, fitting, object_json, text_members, value_json
from dormouse_worker.front.answers.closable_json import Malformed

SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "text": {"type": "string"},
        "either": {"type": ["string", "null"]},
        "maybe": {"type": ["integer", "null"]},
        "list": {"type": "array"},
        "any": {},
        "odd": True,
    },
}


def test_halves_of_surrogates_are_replaced():
    assert clean("a\ud83d😀") == "a?😀"


def test_a_string_holds_an_object():
    assert object_json('{"a": [1, "é"], "b": {}}') == '{"a":[1,"\\u00e9"],"b":{}}'


@pytest.mark.parametrize("text", ["", "{", "[1]", '"a"', '{"a": NaN}', '{"a": 1e999}', '{"a":' * 100_000])
def test_a_string_that_holds_no_object_is_malformed(text: str):
    with pytest.raises(Malformed):
        object_json(text)


@pytest.mark.parametrize(
    ("text", "key", "json"),
    [
        ("2", "number", "2"),
        ("2", "text", '"2"'),
        ("\n2\n", "text", '"2"'),
        ("\n\n a \n\n", "text", '"\\n a \\n"'),
        ("two", "number", '"two"'),
        ("Infinity", "number", '"Infinity"'),
        ('{"a": 1}', "unknown", '{"a":1}'),
    ],
)
def test_one_argument_is_json_unless_the_schema_says_text(text: str, key: str, json: str):
    assert value_json(text, key, SCHEMA) == json


def test_texts_become_what_the_schema_wants_where_they_can():
    said = {"number": "2", "text": "2", "either": "null", "maybe": "None", "list": "[1]", "any": "2", "odd": "2"}
    assert fitting(said, SCHEMA) == (
        '{"number":2,"text":"2","either":"null","maybe":null,"list":[1],"any":"2","odd":"2"}'
    )
    assert fitting({"number": "1e999", "maybe": "True", "list": [1]}, SCHEMA) == (
        '{"number":"1e999","maybe":true,"list":[1]}'
    )
    assert fitting({"number": "2"}, None) == '{"number":"2"}'


@pytest.mark.parametrize("arguments", [None, [1], {"a": float("nan")}])
def test_what_is_no_object_of_json_does_not_fit(arguments: object):
    with pytest.raises(Malformed):
        fitting(arguments, SCHEMA)


def test_which_arguments_are_text():
    assert text_members(SCHEMA) == {"text", "either"}
    assert text_members({"properties": 1}) == text_members(None) == frozenset()
