"""Forms of answers, and calls of functions, from a checked body to the contract."""

import pytest
from google.protobuf.json_format import MessageToDict

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.mapping import to_chat, to_completion
from dormouse_gateway.openai.structured import constrain
from dormouse_gateway.openai.turns import add_call, joined

KINDS = "json, json_object, regex, choice, grammar, structural_tag"


def constrained(body):
    params = pb.SamplingParams()
    constrain(params, body)
    return params.structured_outputs


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({}, "none"),
        ({"regex": None, "json_object": False, "disable_any_whitespace": True}, "none"),
        ({"regex": "a", "json": {}}, "json, regex"),
    ],
)
def test_it_is_one_form(wanted, told):
    with pytest.raises(ApiError) as caught:
        constrained({"structured_outputs": wanted})
    assert str(caught.value) == f"structured_outputs is {told} of its kinds; allowed: one of {KINDS}"


@pytest.mark.parametrize("schema", [{"const": "ä"}, '{"const": "ä"}'])
def test_a_schema_goes_on_as_it_is_written(schema):
    assert constrained({"structured_outputs": {"json": schema}}).json_schema == '{"const": "ä"}'


def test_a_form_beside_another_is_refused():
    with pytest.raises(ApiError) as caught:
        constrained({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}})
    assert str(caught.value) == "structured_outputs is set beside response_format json_object; allowed: one of the two"


@pytest.mark.parametrize(
    ("arguments", "known"), [("", {}), ('{"b": 1, "a": 2}', {"b": 1, "a": 2}), ({"b": 1}, {"b": 1})]
)
@pytest.mark.parametrize(("call_id", "named"), [(None, {}), ("c1", {"id": "c1"})])
def test_a_call_is_as_templates_want_it(arguments, known, call_id, named):
    turn = pb.ChatMessage()
    add_call(turn, "look", arguments, call_id)
    (call,) = turn.tool_calls
    assert MessageToDict(call) == named | {"type": "function", "function": {"name": "look", "arguments": known}}


@pytest.mark.parametrize(
    ("content", "told"), [(None, ""), ("a", "a"), ([{"text": "a"}, {"text": "b"}], "a\nb"), ([], "")]
)
def test_parts_of_a_text_are_lines(content, told):
    assert joined(content) == told


@pytest.mark.parametrize(
    ("make", "said"), [(to_chat, {"messages": [{"role": "user", "content": "a"}]}), (to_completion, {"prompt": "a"})]
)
@pytest.mark.parametrize(("stream", "interval"), [(True, 0), (False, 64)])
def test_a_body_is_a_request_of_its_caller_told_as_it_is_read(make, said, stream, interval):
    (request,) = make({"model": "tiny", "stream": stream} | said, "mine").prompts
    assert (request.request_id, request.stream_interval) == ("mine", interval)
