"""Libraries and programs that want JSON, a call or a choice: a real gateway with keys, a real worker behind it.

What the model says is up to it; that it has the form which was asked for, and that events come in their order, is not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from tests.faults.gateway_process import GatewayProcess
from tests.outside import client_env
from tests.outside.recordings import Recorded, requests_of
from tests.outside.test_clients import Library, line_of, running
from tests.outside.visited import KEY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ANIMAL = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["dormouse", "hedgehog"]},
        "weeks": {"type": "integer", "minimum": 0, "maximum": 52},
        "asleep": {"type": "boolean"},
    },
    "required": ["animal", "weeks", "asleep"],
    "additionalProperties": False,
}
WAKE = {"type": "object", "properties": {"loudly": {"type": "boolean"}}, "required": ["loudly"]}
TOOLS = {"look_up": ANIMAL, "wake": WAKE}
CLAUDE_CODE, CODEX = requests_of("claude_code"), requests_of("codex")
PROGRAMS = {"forms_openai.mjs": None, "forms_langchain.py": None, "forms_anthropic.py": sys.executable}


async def told_by(program: str, gateway: GatewayProcess, folder: Path) -> Any:
    """Return what a program saw."""
    library = Library(program, {}, python=PROGRAMS[program])
    async with running(library, gateway, folder) as process:
        return json.loads(await line_of(process, folder / "program.log"))


def check_calls(calls: Sequence[tuple[str, Any]]) -> None:
    """Have at least one call, each with arguments that fit its tool."""
    assert calls
    for name, arguments in calls:
        jsonschema.validate(arguments, TOOLS[name])


async def test_openais_library_for_node_gets_forms_and_calls(gateway: GatewayProcess, tmp_path: Path) -> None:
    told = await told_by("forms_openai.mjs", gateway, tmp_path)
    assert len(told["parsed"]) == 3
    for parsed in told["parsed"]:
        jsonschema.validate(parsed, ANIMAL)
    chat, responses = told["chat"], told["responses"]
    check_calls(chat["calls"])
    assert (chat["finish"], responses["status"]) == ("tool_calls", "completed")
    assert chat["pieces"] > 1, "arguments come while they are written"
    assert "".join(json.dumps(call[1], separators=(",", ":")) for call in chat["calls"]) == without_blanks(chat["joined"])
    check_calls(responses["calls"])
    check_response_events(responses["events"])


async def test_langchain_gets_structured_outputs_and_forced_calls(gateway: GatewayProcess, tmp_path: Path) -> None:
    told = await told_by("forms_langchain.py", gateway, tmp_path)
    for parsed in told["parsed"].values():
        jsonschema.validate(parsed, ANIMAL)
    assert len(told["parsed"]) == 3
    assert isinstance(json.loads(told["json_mode"]), dict)
    for calls in told["calls"].values():
        check_calls(calls)
    assert told["calls"]["streamed"] == told["calls"]["whole"]
    assert [name for name, _ in told["calls"]["named"]] == ["wake"]


async def test_anthropics_library_gets_forms_calls_and_counts(gateway: GatewayProcess, tmp_path: Path) -> None:
    told = await told_by("forms_anthropic.py", gateway, tmp_path)
    jsonschema.validate(told["parsed"], ANIMAL)
    streamed = told["streamed"]
    for calls in (told["calls"]["whole"], told["beta"], streamed["calls"]):
        check_calls(calls)
    assert streamed["calls"] == told["calls"]["whole"]
    assert streamed["stop"] == "tool_use"
    assert len(streamed["pieces"]) > 1
    assert told["went on"] in ("end_turn", "max_tokens")
    assert told["counted"] == told["used"] > 0


@pytest.mark.parametrize("recorded", CLAUDE_CODE, ids=str)
async def test_claude_code_is_answered(recorded: Recorded, gateway: GatewayProcess) -> None:
    events = await sent(gateway, recorded)
    if not recorded.body.get("stream"):
        (told,) = events
        assert told.get("type", "tokens") == ("message" if "max_tokens" in recorded.body else "tokens"), told
        return
    check_message_events(events)
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    if form := recorded.body["output_config"].get("format"):
        check_form(text, form["schema"], is_whole=stop_of(events) == "end_turn")


@pytest.mark.parametrize("recorded", CODEX, ids=str)
async def test_codex_is_answered(recorded: Recorded, gateway: GatewayProcess) -> None:
    events = await sent(gateway, recorded)
    check_response_events([event["type"] for event in events])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = events[-1]["response"]
    text = "".join(part["text"] for item in response["output"] for part in item["content"])
    assert text == "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    if form := recorded.body.get("text", {}).get("format"):
        check_form(text, form["schema"], is_whole=response["status"] == "completed")


def check_form(text: str, schema: Mapping[str, Any], *, is_whole: bool) -> None:
    """Have what ended by itself fit the schema; what was cut begins as it should."""
    if is_whole:
        jsonschema.validate(json.loads(text), schema)
    assert text.lstrip().startswith("{")


async def sent(gateway: GatewayProcess, recorded: Recorded) -> list[Any]:
    """Return the events of an answer, or its one object."""
    headers = dict(recorded.headers) | {"authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{gateway.http_port}{recorded.path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=recorded.body, headers=headers) as answer,
    ):
        said = await answer.text()
        assert answer.status == 200, said
    if not recorded.body.get("stream"):
        return [json.loads(said)]
    return [json.loads(line.removeprefix("data: ")) for line in said.splitlines() if line.startswith("data: ")]


def stop_of(events: Sequence[Any]) -> Any:
    """Return why a message ended."""
    return events[-2]["delta"]["stop_reason"]


def check_message_events(events: Sequence[Any]) -> None:
    """Have a message's begin and end, and between them one whole block after the other."""
    types = [event["type"] for event in events]
    assert (types[0], types[-2:]) == ("message_start", ["message_delta", "message_stop"])
    index, is_open = -1, False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            index, is_open = index + 1, True
        assert (event["index"], is_open) == (index, True), event
        is_open = event["type"] != "content_block_stop"
    assert not is_open
    assert stop_of(events) in ("end_turn", "max_tokens", "tool_use")


def check_response_events(types: Sequence[str]) -> None:
    """Have a response's begin and end, and between them one whole item after the other."""
    assert list(types[:2]) == ["response.created", "response.in_progress"]
    assert types[-1] in ("response.completed", "response.incomplete")
    is_open = False
    for kind in types[2:-1]:
        is_begin = kind == "response.output_item.added"
        assert is_begin != is_open, types
        is_open = kind != "response.output_item.done"
    assert not is_open


def test_every_program_is_tried() -> None:
    assert {path.name for path in client_env.PROGRAMS.glob("forms_*")} == set(PROGRAMS)
