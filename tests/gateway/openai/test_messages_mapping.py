"""What of Anthropic's body reaches a worker; see test_messages.py for what its client gets."""

import pytest
from google.protobuf.json_format import MessageToDict

from dormouse_gateway.openai.messages.mapping import chat_of, to_message
from dormouse_gateway.openai.pictures import TAKEN

ASK = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
SCHEMA = {"type": "object"}
PICTURE = {"type": "image", TAKEN: b"pixels"}


def said(role, *blocks):
    return {"role": role, "content": list(blocks)}


def result(content, **more):
    return {"type": "tool_result", "tool_use_id": "c1", "content": content} | more


def text(it):
    return {"type": "text", "text": it}


@pytest.mark.parametrize(("stream", "interval"), [(True, 0), (False, 64)])
def test_it_is_a_request_of_its_caller_told_as_it_is_read(stream, interval):
    wish = to_message(ASK | {"stream": stream}, "mine")
    (request,) = wish.prompts
    assert (request.request_id, request.stream_interval, wish.is_stream) == ("mine", interval, stream)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"description": "Looks."}, {"description": "Looks."}),
        ({"strict": True}, {"strict": True}),
        ({"strict": False}, {}),
        ({}, {}),
    ],
)
def test_a_tool_is_shown_as_a_function(told, shown):
    chat = chat_of(ASK | {"tools": [{"name": "look", "input_schema": SCHEMA} | told]})
    (tool,) = chat.tools
    assert MessageToDict(tool) == {"type": "function", "function": {"name": "look", "parameters": SCHEMA} | shown}


@pytest.mark.parametrize(
    ("turns", "goes_on"),
    [
        ([said("user", text("hi"))], False),
        ([said("user", text("hi")), said("assistant", text("Well"))], True),
        ([said("user", text("hi")), said("assistant", USE)], False),
        ([said("assistant", USE), said("user", result("x")), said("assistant", text("Well"))], True),
        ([said("user", text("hi")), said("assistant", text("I look."), USE)], False),
        (
            [said("user", text("hi")), said("assistant", USE), said("user", result("x")), said("assistant", text("W"))],
            True,
        ),
    ],
)
def test_the_assistants_last_turn_goes_on_unless_it_called(turns, goes_on):
    assert chat_of(ASK | {"messages": turns}).continue_final_message is goes_on


@pytest.mark.parametrize(
    ("beside", "roles"),
    [
        ([], ["tool"]),
        ([text("and?")], ["tool", "user"]),
        ([PICTURE], ["tool", "user"]),
    ],
)
def test_what_stands_beside_a_result_is_a_turn_of_its_own(beside, roles):
    turns = [said("assistant", USE), said("user", result("out"), *beside)]
    chat = chat_of(ASK | {"messages": turns})
    assert [turn.role for turn in chat.messages] == ["assistant", *roles]
    assert (chat.messages[1].tool_call_id, chat.messages[1].content) == ("c1", "out")


@pytest.mark.parametrize(("fails", "told"), [({"is_error": True}, ["Error:"]), ({"is_error": False}, []), ({}, [])])
def test_a_result_with_an_image_that_is_an_error_says_so_first(fails, told):
    turns = [said("assistant", USE), said("user", result([text("dark"), PICTURE], **fails))]
    parts = chat_of(ASK | {"messages": turns}).messages[1].parts
    assert [part.text or part.image for part in parts] == [*told, "dark", b"pixels"]


def test_a_turn_that_only_thinks_is_one():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    *_, turn = chat_of(ASK | {"messages": [said("user", text("hi")), said("assistant", thought)]}).messages
    assert (turn.role, turn.content, turn.reasoning_content) == ("assistant", "", "Hm.")
