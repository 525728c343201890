"""What coding agents send, in the shape in which they send it: a real gateway with keys, a real worker behind it.

What the model says is up to it; not that nothing is refused, that events come in their order, and that a form holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import jsonschema
import pytest

from tests.faults.gateway_process import GatewayProcess
from tests.outside.recordings import Recorded, requests_of
from tests.outside.visited import KEY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_claude_code_is_answered(gateway: GatewayProcess) -> None:
    for recorded in requests_of("claude_code"):
        events = await sent(gateway, recorded)
        if recorded.body.get("stream"):
            check_message_events(events)
            check_form(recorded.body["output_config"].get("format"), text_of(events), is_whole=is_whole(events))
        elif "max_tokens" in recorded.body:
            assert (events[0]["type"], events[0]["usage"]["output_tokens"]) == ("message", 1)
        else:
            assert events[0]["input_tokens"] > 0


async def test_codex_is_answered(gateway: GatewayProcess) -> None:
    for recorded in requests_of("codex"):
        events = await sent(gateway, recorded)
        check_response_events([event["type"] for event in events])
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        response = events[-1]["response"]
        text = "".join(part["text"] for item in response["output"] for part in item["content"])
        assert text == "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        form = recorded.body.get("text", {}).get("format")
        check_form(form, text, is_whole=response["status"] == "completed")


async def sent(gateway: GatewayProcess, recorded: Recorded) -> list[Any]:
    """Return the events of an answer, or its one object."""
    headers = {**recorded.headers, "authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{gateway.http_port}{recorded.path}"
    async with aiohttp.ClientSession() as session, session.post(url, json=recorded.body, headers=headers) as answer:
        said = await answer.text()
        assert answer.status == 200, f"{recorded.what}: {said}"
    if not recorded.body.get("stream"):
        return [json.loads(said)]
    return [json.loads(line.removeprefix("data: ")) for line in said.splitlines() if line.startswith("data: ")]


def check_form(form: Mapping[str, Any] | None, text: str, *, is_whole: bool) -> None:
    """Have what ended by itself fit the schema; what was cut begins as it should."""
    if form and is_whole:
        jsonschema.validate(json.loads(text), form["schema"])
    assert not form or text.lstrip().startswith("{")


def text_of(events: Sequence[Any]) -> str:
    """Return what a message says."""
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


def is_whole(events: Sequence[Any]) -> bool:
    """Return whether a message ended by itself."""
    return bool(events[-2]["delta"]["stop_reason"] == "end_turn")


def check_message_events(events: Sequence[Any]) -> None:
    """Have a message's begin and end, and between them one whole block after the other."""
    types = [event["type"] for event in events]
    assert (types[0], types[-2:]) == ("message_start", ["message_delta", "message_stop"])
    index, is_open = -1, False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open, types
            index, is_open = index + 1, True
        assert (event["index"], is_open) == (index, True), types
        is_open = event["type"] != "content_block_stop"
    assert not is_open, types


def check_response_events(types: Sequence[str]) -> None:
    """Have a response's begin and end, and between them one whole item after the other."""
    assert list(types[:2]) == ["response.created", "response.in_progress"]
    assert types[-1] in ("response.completed", "response.incomplete")
    is_open = False
    for kind in types[2:-1]:
        assert (kind == "response.output_item.added") != is_open, types
        is_open = kind != "response.output_item.done"
    assert not is_open, types
