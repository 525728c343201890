"""What bodies may say: the checker agrees with JSON Schema's own, and names what is wrong."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dormouse_gateway.openai.checking import check
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.mapping import to_chat, to_completion
from dormouse_gateway.openai.reading import read_body
from dormouse_gateway.openai.schemas import CHAT_REQUEST, COMPLETION_REQUEST

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(-(2**66), 2**66),
    st.floats(-200, 200),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from(["text", "function", "auto", "none", "12"]),
)
NAMES = (
    "type",
    "role",
    "content",
    "text",
    "function",
    "name",
    "arguments",
    "tool_calls",
    "include_usage",
    "12",
    "refusal",
)
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
GOOD = {"model": "tiny", "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
SCHEMAS = {"chat": CHAT_REQUEST, "completion": COMPLETION_REQUEST}


@pytest.mark.parametrize("kind", SCHEMAS)
@given(data=st.data())
def test_it_takes_what_json_schema_takes_and_nothing_else(kind, data):
    schema = SCHEMAS[kind]
    body = {name: value for name, value in GOOD.items() if name in schema["properties"]}
    body[data.draw(st.sampled_from(sorted(schema["properties"])))] = data.draw(JSON)
    try:
        check(body, schema)
    except ApiError:
        assert not Draft202012Validator(schema).is_valid(body)
    else:
        assert Draft202012Validator(schema).is_valid(body)
        given_fields = {name: value for name, value in body.items() if value is not None}
        with suppress(ApiError):  # what does not go together is told in words
            (to_chat if kind == "chat" else to_completion)(given_fields, "id")


@pytest.mark.parametrize(("kind", "schema"), SCHEMAS.items())
def test_the_schemas_are_schemas(kind, schema):
    Draft202012Validator.check_schema(schema)
    assert kind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n is 0; allowed: from 1 to 16"),
        ({"top_p": 0}, "top_p is 0; allowed: above 0 to 1"),
        ({"stop": 5 * ["a"]}, "stop is 5 items; allowed: 0 to 4"),
        ({"stop": ""}, "stop is 0 characters; allowed: 1 to 64"),
        ({"stop": {}}, "stop is {}; allowed: a string or an array or null"),
        ({"logit_bias": {"a": 1}}, 'logit_bias.a is "a"; allowed: what matches ^[0-9]{1,9}$'),
        ({"logit_bias": {"1": 101}}, "logit_bias.1 is 101; allowed: from -100 to 100"),
        ({"seed": -1}, "seed is -1; allowed: from 0 to 18446744073709551615"),
        ({"model": ""}, "model is 0 characters; allowed: 1 to 256"),
        ({"tool_choice": "any"}, 'tool_choice is "any"; allowed: "auto", "none", "required"'),
        ({"tool_choice": {"type": "custom"}}, 'tool_choice.type is "custom"; allowed: "function", "allowed_tools"'),
        ({"allowed_token_ids": []}, "allowed_token_ids is 0 items; allowed: 1 to"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function is missing"),
        ({"messages": []}, "messages is 0 items; allowed: 1 to 1024"),
        ({"messages": [{"content": "a"}]}, "messages[0].role is missing; allowed: As the model's template"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE | {"image_url": "x"}]}]},
            'messages[0].content[1].image_url is "x"; allowed: an object',
        ),
        (
            {"messages": [{"role": "user", "content": [IMAGE | {"image_url": {"url": "x", "detail": "high"}}]}]},
            'messages[0].content[0].image_url.detail is "high"; allowed: "auto". An image is seen as the model',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_file", "file": {"data": ""}}]}]},
            'messages[0].content[0].type is "input_file"; allowed: "text", "image_url"',
        ),
        ({"audio": {}}, "audio is not supported"),
        ({"store": True}, "store is true; allowed: false. Nothing is stored."),
        ({"service_tier": "flex"}, 'service_tier is "flex"; allowed: "auto", "default"'),
        ({"modalities": ["text", "audio"]}, "modalities is 2 items; allowed: 1 to 1"),
        ({"modalities": ["audio"]}, 'modalities[0] is "audio"; allowed: "text". Answers are text.'),
        ({"prediction": {"type": "text", "content": "a"}}, 'prediction.type is "text"; allowed: "content".'),
        ({"prediction": {}}, 'prediction.type is missing; allowed: "content". There are no others.'),
        ({"prediction": {"type": "content"}}, "prediction.content is missing"),
        (
            {"prediction": {"type": "content", "content": [{"type": "text"}]}},
            "prediction.content[0].text is missing; allowed: a string",
        ),
        ({"prediction": {"type": "content", "content": [1]}}, "prediction.content[0] is 1"),
        ({"verbosity": "low"}, 'verbosity is "low"; allowed: "medium". How much a model says is up to it.'),
        ({"response_format": {"type": "xml"}}, 'response_format.type is "xml"; allowed: "text", "json_object", "json_'),
        ({"response_format": {}}, "response_format.type is missing"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema is missing"),
        ({"metadata": {"a": 1}}, "metadata.a is 1; allowed: a string"),
        ({"metadata": dict.fromkeys("abcdefghijklmnopq", "")}, "metadata is 17 entries; allowed: at most 16"),
    ],
)
def test_a_refusal_names_field_value_and_limit(changes, message):
    with pytest.raises(ApiError) as caught:
        check({"model": "tiny", "messages": GOOD["messages"]} | changes, CHAT_REQUEST)
    assert str(caught.value).startswith(message)


def test_what_clients_send_by_themselves_changes_no_request():
    body = {"model": "tiny", "messages": GOOD["messages"]}
    harmless = {
        "store": False,
        "metadata": {"team": "a"},
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "user": "z",
        "modalities": ["text"],
        "parallel_tool_calls": False,
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit"},
        "verbosity": "medium",
        "continue_final_message": False,
    }
    check(body | harmless, CHAT_REQUEST)
    assert to_chat(body | harmless, "id") == to_chat(body, "id")


@pytest.mark.parametrize("content", ["a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]])
def test_a_prediction_goes_to_the_worker_as_text(content):
    body = {"model": "tiny", "messages": GOOD["messages"], "prediction": {"type": "content", "content": content}}
    check(body, CHAT_REQUEST)
    assert to_chat(body, "id").prompts[0].prediction == "a\nb"


def test_null_is_as_good_as_nothing():
    raw = b'{"model": "tiny", "prompt": "a", "stop": null, "n": null, "stream_options": null}'
    assert read_body(raw, COMPLETION_REQUEST) == {"model": "tiny", "prompt": "a"}


TEXT = {"type": "string"}
DIGITS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}}
NEEDY = {"type": "object", "properties": {"kind": {"enum": ["a"]}, "need": TEXT, "other": TEXT}, "required": ["need"]}
DEEP = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}}}
FLAT = {"type": "object", "properties": {"a": TEXT}}


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        ([0, 9, 10], DIGITS, "at[2] is 10; allowed: from 0 to 9"),
        ([0, -1, 10], DIGITS, "at[1] is -1; allowed: from 0 to 9"),
        ([1, True], DIGITS, "at[1] is true; allowed: an integer"),
        (["1"], DIGITS, 'at[0] is "1"; allowed: an integer'),
        ([1, 1.5], DIGITS, "at[1] is 1.5; allowed: an integer"),
        ({"kind": "b"}, NEEDY, 'at.kind is "b"; allowed: "a"'),
        (
            {"kind": "b"},
            NEEDY | {"properties": {"kind": {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, "need": TEXT}},
            'at.kind is "b"; allowed: "a"',
        ),
        ({"other": 1}, NEEDY, "at.need is missing; allowed: a string"),
        ({"kind": "a"}, NEEDY, "at.need is missing; allowed: a string"),
        (
            {},
            NEEDY | {"properties": {"need": {"anyOf": [TEXT, DIGITS, {"type": "null"}]}}},
            "at.need is missing; allowed: a string or an array or null",
        ),
        ({"a": {"b": "x"}}, {"anyOf": [FLAT, DEEP]}, 'at.a.b is "x"; allowed: an integer'),
        ({"a": {"b": "x"}}, {"anyOf": [DEEP, FLAT]}, 'at.a.b is "x"; allowed: an integer'),
        ("b", {"enum": ["a"]}, 'at is "b"; allowed: "a"'),
        ("c", {"enum": ["a", "b"], "description": "Not told."}, 'at is "c"; allowed: "a", "b"'),
        ("b", {"enum": ["a"], "description": "No others."}, 'at is "b"; allowed: "a". No others.'),
    ],
)
def test_a_refusal_says_which_part_does_not_fit(value, schema, message):
    with pytest.raises(ApiError) as caught:
        check(value, schema, "at")
    assert str(caught.value) == message


@pytest.mark.parametrize("numbers", [[], [0], [9, 0, 5], [3.0]])
def test_whole_numbers_of_the_range_fit(numbers):
    check(numbers, DIGITS, "at")


LISTS = {"anyOf": [TEXT, {"type": "array", "items": TEXT}, DIGITS, {"type": "null"}]}
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
SIZED = {"type": "object", "minProperties": 1, "maxProperties": 2}
KINDS = [{"type": "object", "properties": {"type": {"enum": [kind]}}, "required": ["type"]} for kind in "abc"]
UNNAMED = {"type": "object", "properties": {"type": {"enum": ["d"]}, "x": TEXT}, "required": ["x"]}


@pytest.mark.parametrize(
    ("value", "schema", "param", "message"),
    [
        ([1], {"type": "object"}, None, "body is [1]; allowed: an object"),
        (True, {"anyOf": [TEXT, {"type": "integer"}]}, "at", "at is true; allowed: a string or an integer"),
        ("é", {"type": "null"}, "at", 'at is "\\u00e9"; allowed: null'),
        (58 * "a", {"type": "null"}, "at", f'at is "{58 * "a"}"; allowed: null'),
        (59 * "a", {"type": "null"}, "at", f'at is "{59 * "a"}…; allowed: null'),
        ("\ud800", TEXT, "at", "at is no text; allowed: UTF-8, without single surrogates"),
        ("", {"type": "string", "minLength": 1}, "at", "at is 0 characters; allowed: at least 1"),
        ("abc", {"type": "string", "maxLength": 2}, "at", "at is 3 characters; allowed: 0 to 2"),
        (3, {"type": "integer", "maximum": 2}, "at", "at is 3; allowed: at most 2"),
        (0, {"type": "number", "exclusiveMinimum": 0}, "at", "at is 0; allowed: above 0"),
        ({}, SIZED, "at", "at is 0 entries; allowed: 1 to 2"),
        ({"b": 1}, CLOSED, "at.b", "at.b is not supported"),
        ([1, "a"], LISTS, "at[1]", 'at[1] is "a"; allowed: an integer'),
        (["a", 1], LISTS, "at[1]", "at[1] is 1; allowed: a string"),
        ([True], LISTS, "at[0]", "at[0] is true; allowed: a string"),
        ({"x": 1}, {"anyOf": [KINDS[0], UNNAMED]}, "at.x", "at.x is 1; allowed: a string"),
        ({}, {"anyOf": KINDS}, "at.type", 'at.type is missing; allowed: "a"'),
    ],
)
def test_a_refusal_is_told_with_its_field_and_code(value, schema, param, message):
    with pytest.raises(ApiError) as caught:
        check(value, schema, "at" if param else "")
    assert str(caught.value) == message
    assert caught.value.param == (param or "body")
    assert caught.value.status == 400
    assert caught.value.code == ("unsupported_parameter" if "not supported" in message else None)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("", {"type": "string"}),
        ("ab", {"type": "string", "maxLength": 2}),
        ({"a": 1, "b": 2}, SIZED),
        (1.7976931348623157e308, {"type": "number"}),
        (-1.7976931348623157e308, {"type": "number"}),
        ([], LISTS),
    ],
)
def test_limits_themselves_fit(value, schema):
    check(value, schema, "at")
