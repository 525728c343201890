"""Anthropic's own library for Python: tools whole and streamed, a form, and how many tokens a request is."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import anthropic
from pydantic import BaseModel

MESSAGES: list[Any] = [{"role": "user", "content": "Which animal sleeps, and how long?"}]


class Animal(BaseModel):
    """An animal that sleeps."""

    animal: Literal["dormouse", "hedgehog"]
    weeks: Literal[20, 30]  # bounds of numbers are left out of what this library sends
    asleep: bool


TOOLS: list[Any] = [
    {"name": "look_up", "description": "Look an animal up.", "input_schema": Animal.model_json_schema()},
    {
        "name": "wake",
        "input_schema": {"type": "object", "properties": {"loudly": {"type": "boolean"}}, "required": ["loudly"]},
        "cache_control": {"type": "ephemeral"},
    },
]
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 512, "messages": MESSAGES, "extra_body": {"temperature": 0}}
FORCED: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


def calls_of(message: Any) -> list[list[Any]]:
    """Return a message's calls."""
    return [[block.name, block.input] for block in message.content if block.type == "tool_use"]


def streamed(claude: anthropic.Anthropic) -> dict[str, Any]:
    """Return what a stream tells: its events, the pieces of arguments, the message of them."""
    events, pieces = [], []
    with claude.messages.stream(**ASK, **FORCED) as stream:
        for event in stream:
            events.append(event.type)
            if event.type == "input_json":
                pieces.append(event.partial_json)
        message = stream.get_final_message()
    return {"events": events, "pieces": pieces, "calls": calls_of(message), "stop": message.stop_reason}


def went_on(claude: anthropic.Anthropic) -> str | None:
    """Return how a conversation ends in which a tool's result is sent back, as the library's users send it."""
    first = claude.messages.create(**ASK, **FORCED)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "it sleeps"}
        for block in first.content
        if block.type == "tool_use"
    ]
    turns = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    return claude.messages.create(**(ASK | {"messages": turns, "max_tokens": 8}), tools=TOOLS).stop_reason


def main() -> None:
    """Ask everything, print what came."""
    address, key = sys.argv[1:3]
    claude = anthropic.Anthropic(base_url=address.removesuffix("/v1"), api_key=key, max_retries=0)
    parsed = claude.messages.parse(**ASK, output_format=Animal).parsed_output
    told = {
        "parsed": parsed.model_dump() if parsed else None,
        "calls": {"whole": calls_of(claude.messages.create(**ASK, **FORCED))},
        "beta": calls_of(claude.beta.messages.create(**ASK, **FORCED)),
        "streamed": streamed(claude),
        "went on": went_on(claude),
        "counted": claude.messages.count_tokens(
            model="tiny", messages=MESSAGES, system="Short.", tools=TOOLS
        ).input_tokens,
        "used": claude.messages.create(**(ASK | {"max_tokens": 1}), system="Short.", tools=TOOLS).usage.input_tokens,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
