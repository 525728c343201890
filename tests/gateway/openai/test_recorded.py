"""What coding agents send passes the gateway's checks, and becomes the internal request; no model is asked."""

import json

import pytest

from dormouse_gateway.openai.messages.mapping import chat_of, to_message
from dormouse_gateway.openai.messages.schemas import COUNT_REQUEST, MESSAGES_REQUEST
from dormouse_gateway.openai.reading import read_body
from dormouse_gateway.openai.responses.mapping import to_response
from dormouse_gateway.openai.responses.schemas import RESPONSES_REQUEST
from tests.outside.recordings import requests_of

CLAUDE_CODE = {recorded.what: recorded for recorded in requests_of("claude_code")}
CODEX = {recorded.what: recorded for recorded in requests_of("codex")}


def taken(recorded, schema):
    return read_body(json.dumps(recorded.body).encode(), schema)


@pytest.mark.parametrize("what", [what for what in CLAUDE_CODE if what != "tokens"])
def test_claude_codes_requests_are_taken(what):
    body = taken(CLAUDE_CODE[what], MESSAGES_REQUEST)
    wish = to_message(body, "r")
    (request,) = wish.prompts
    assert wish.is_stream == body.get("stream", False)
    assert len(request.chat.tools) == len(body.get("tools", ()))
    assert "billing" not in request.chat.messages[0].content, "what changes with every request is not cached"


def test_claude_codes_count_is_of_the_conversation_that_it_sends():
    counted = taken(CLAUDE_CODE["tokens"], COUNT_REQUEST)
    sent = chat_of(CLAUDE_CODE["a turn with results"].body)
    assert [turn.role for turn in sent.messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert list(chat_of(counted).messages) == list(sent.messages)[1:]


@pytest.mark.parametrize("what", CODEX)
def test_codexs_requests_are_taken(what):
    body = taken(CODEX[what], RESPONSES_REQUEST)
    (request,) = to_response(body, "r").prompts
    assert len(request.chat.tools) == len(body["tools"])
    assert request.chat.messages[0].role == "system"
    assert request.sampling_params.structured_outputs.WhichOneof("constraint") == (
        "json_schema" if body.get("text", {}).get("format") else None
    )


def test_codexs_results_are_turns_of_their_own():
    (request,) = to_response(taken(CODEX["a turn with results"], RESPONSES_REQUEST), "r").prompts
    turns = request.chat.messages
    assert [turn.role for turn in turns] == ["system", "user", "user", "assistant", "tool", "assistant", "tool"]
    assert turns[3].reasoning_content == "The file has to be read."
    (called,) = turns[3].tool_calls
    assert called["function"]["name"] == "exec_command"
    assert called["id"] == turns[4].tool_call_id
