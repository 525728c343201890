"""Libraries and programs that want JSON, a call or a choice: a real gateway with keys, a real worker behind it.

What the model says is up to it; that it has the form which was asked for, and that events come in their order, is not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.faults.gateway_process import GatewayProcess
from tests.outside import client_env
from tests.outside.test_clients import Library, line_of, running
from tests.outside.test_recorded import check_response_events

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
    assert json.loads(chat["joined"]) == chat["calls"][0][1]
    assert list(json.loads(chat["joined"])) == list(ANIMAL["properties"]), "in the order of the schema"
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


def test_every_program_is_tried() -> None:
    assert {path.name for path in client_env.PROGRAMS.glob("forms_*")} == set(PROGRAMS)
