"""What of a body of /v1/responses reaches a worker; see test_responses.py for what its client gets."""

import pytest

from dormouse_gateway.openai.pictures import TAKEN
from dormouse_gateway.openai.responses.mapping import to_response, turns_of

ASK = {"model": "tiny", "input": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
LOOK, GO = ({"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "go"))


def message(role, content):
    return {"type": "message", "role": role, "content": content}


def thought(text):
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def shown(request):
    return [tool["function"]["name"] for tool in request.chat.tools]


@pytest.mark.parametrize(("stream", "interval"), [(True, 0), (False, 64)])
def test_it_is_a_request_of_its_caller_told_as_it_is_read(stream, interval):
    wish = to_response(ASK | {"stream": stream}, "mine")
    (request,) = wish.prompts
    assert (request.request_id, request.stream_interval, wish.is_stream) == ("mine", interval, stream)


@pytest.mark.parametrize(("mode", "has_to_call"), [("auto", False), ("required", True)])
def test_of_allowed_tools_alone_the_model_is_shown_any(mode, has_to_call):
    allowed = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "go"}]}
    (request,) = to_response(ASK | {"tools": [LOOK, GO], "tool_choice": allowed}, "mine").prompts
    assert shown(request) == ["go"]
    assert (request.answer_parsing.tool_calls, request.answer_parsing.any_function) == (True, has_to_call)


def test_a_named_function_is_the_one_to_call():
    chosen = {"type": "function", "name": "go"}
    (request,) = to_response(ASK | {"tools": [LOOK, GO], "tool_choice": chosen}, "mine").prompts
    assert shown(request) == ["look", "go"]
    assert request.answer_parsing.function == "go"


def test_thoughts_in_a_row_are_one_turns():
    (turn,) = turns_of([thought("Hm. "), thought("Well.")])
    assert (turn.role, turn.reasoning_content) == ("assistant", "Hm. Well.")


@pytest.mark.parametrize(
    "spoken", [message("assistant", "I look."), message("assistant", [{"type": "output_text", TAKEN: b"pixels"}]), CALL]
)
def test_a_thought_after_something_said_or_called_begins_a_turn(spoken):
    assert [turn.reasoning_content for turn in turns_of([spoken, thought("Hm.")])] == ["", "Hm."]


def test_a_call_goes_on_with_what_was_said_before_it():
    (turn,) = turns_of([thought("Hm."), message("assistant", "I look."), CALL, CALL])
    assert (turn.reasoning_content, turn.content, len(turn.tool_calls)) == ("Hm.", "I look.", 2)
