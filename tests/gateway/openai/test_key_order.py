"""Tools and calls reach the worker with the order in which the client wrote their members, by every door."""

import json

import pytest

from dormouse_gateway.openai.mapping import to_chat
from dormouse_gateway.openai.messages.mapping import to_message
from dormouse_gateway.openai.responses.mapping import to_response
from dormouse_worker.front.text.plain import in_order

SCHEMA = {
    "type": "object",
    "required": ["z", "a"],
    "properties": {"z": {"enum": [1]}, "a": {"title": "A", "minimum": 0}},
}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
ARGUMENTS = {"z": 1, "a": {"d": [{"y": 1, "x": 2}], "c": 3}}
CALLED = {"name": "look", "arguments": json.dumps(ARGUMENTS)}
HI = {"role": "user", "content": "hi"}
DOORS = {
    "chat": (
        to_chat,
        {
            "messages": [
                HI,
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": CALLED}]},
            ],
            "tools": [{"type": "function", "function": FUNCTION}] * 2,
        },
    ),
    "responses": (
        to_response,
        {
            "input": [HI, {"type": "function_call", "call_id": "c", **CALLED}],
            "tools": [{"type": "function", **FUNCTION}] * 2,
        },
    ),
    "messages": (
        to_message,
        {
            "max_tokens": 9,
            "messages": [
                HI,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": ARGUMENTS}]},
            ],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}] * 2,
        },
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_the_order_of_members_is_told(door):
    to_wish, body = DOORS[door]
    (request,) = to_wish({"model": "tiny", **body}, "r").prompts
    tools = in_order(request.chat.tools, request.chat.key_order)
    assert [json.dumps(tool["function"]) for tool in tools] == [json.dumps(FUNCTION)] * 2
    turn = request.chat.messages[-1]
    (call,) = in_order(turn.tool_calls, turn.key_order)
    assert json.dumps(call["function"]["arguments"]) == json.dumps(ARGUMENTS)
