"""Ten thousand forms, tools and parsers that make no sense: each is served or refused by name, others hear nothing."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2
from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.testing.fake_engine import Script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_CASES, AT_ONCE = 10_000, 16
NAMED = ("structured_outputs", "chat.tools", "answer_parsing", "prompt")
KEYS = (
    "type",
    "enum",
    "const",
    "properties",
    "items",
    "required",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "pattern",
    "minLength",
)
LEAVES = (None, True, -1, 10**400, 1e300, "", "string", "object", "#", "#/$defs/x", "[a", "(a+)+b", "\\ud800", [], {})
PIECES = (
    *'{}[]()|*+?.,:"\\/-^$ \n',
    "start: ",
    "a",
    "%json ",
    "%ignore ",
    "@x",
    "<f>",
    "<[2]>",
    "</s>",
    "{1,9999}",
    "é",
    "\0",
)
NAMES = ("f", "g", "to day", "", "f" * 300, "f\n", "日本")
PARSERS = ("", "hermes", "mistral", "openai", "glm45", "pythonic", "hermse", "none", "response_template", "\0")


def value(draw: random.Random, depth: int) -> Any:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(LEAVES)
    if draw.random() < 0.3:
        return [value(draw, depth - 1) for _ in range(draw.randrange(3))]
    return {draw.choice(KEYS): value(draw, depth - 1) for _ in range(draw.randint(1, 3))}


def constraint(draw: random.Random) -> pb.StructuredOutputs:
    text = "".join(draw.choices(PIECES, k=draw.randrange(20)))
    schema = json.dumps(value(draw, 4))
    flags = {"disable_any_whitespace": draw.random() < 0.5, "disable_additional_properties": draw.random() < 0.5}
    kinds: tuple[dict[str, Any], ...] = (
        {"json_schema": schema if draw.random() < 0.8 else text},
        {"json_object": draw.random() < 0.5},
        {"regex": text},
        {"grammar": f"start: {text}"},
        {"structural_tag": json.dumps({"structures": value(draw, 3), "triggers": value(draw, 1)})},
        {"choice": {"options": draw.choices(NAMES, k=draw.randrange(4))}},
        {},
    )
    return pb.StructuredOutputs(**draw.choice(kinds), **flags)


def tool(draw: random.Random) -> struct_pb2.Struct:
    parameters = value(draw, 3)
    function = {"name": draw.choice(NAMES), "strict": draw.choice((True, False, None)), "parameters": parameters}
    made = struct_pb2.Struct()
    try:
        made.update({"type": "function", "function": function})
    except (ValueError, TypeError, OverflowError):  # what no Struct holds does not come
        made.update({"type": "function", "function": {"name": "f"}})
    return made


def request(draw: random.Random) -> dict[str, Any]:
    """Return what one caller asks for."""
    chat = pb.Chat(
        messages=[pb.ChatMessage(role="user", content="a")], tools=[tool(draw) for _ in range(draw.randrange(3))]
    )
    asked: dict[str, Any] = {"prompt": chat, "max_tokens": 2}
    if draw.random() < 0.6:
        asked["structured_outputs"] = constraint(draw)
    if draw.random() < 0.6:
        forced = draw.choice(({}, {}, {"function": draw.choice(NAMES)}, {"any_function": True}))
        parsers = {
            "tool_call_parser": draw.choice(PARSERS),
            "reasoning_parser": draw.choice(("", "", "think", "thnik")),
        }
        told = {"tool_calls": draw.random() < 0.8, "reasoning": draw.random() < 0.5}
        asked["answer_parsing"] = pb.AnswerParsing(**parsers, **told, **forced)
    return asked


async def refused_with(call: Any) -> tuple[grpc.StatusCode, str] | None:
    """Return how a call ended, None if it was served."""
    try:
        await call
    except aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return None


async def test_what_makes_no_sense_is_served_or_refused_by_name_and_no_stream_hears_of_it(open_house):
    async with open_house(Script(tokens=(65, 66))) as house:
        engine, draw, refused = house.engine, random.Random(24), 0

        async def one(asked: dict[str, Any]) -> bool:
            """Return whether a request was refused, as it has to be if it is."""
            refusal = await refused_with(house.collect(timeout=60, **asked))
            if refusal is None:
                return False
            code, details = refusal
            assert code is grpc.StatusCode.INVALID_ARGUMENT, (asked, details)
            assert any(name in details for name in NAMED), (asked, details)
            return True

        async def witness() -> None:
            said = await house.collect("w", max_tokens=10, timeout=60)
            assert [token for message in said for token in message.token_ids] == [65, 66] * 5

        for _ in range(0, NUM_CASES, AT_ONCE):
            answers = (one(request(draw)) for _ in range(AT_ONCE))
            refused += sum(map(bool, await asyncio.gather(*answers, witness())))
        assert NUM_CASES // 4 < refused < NUM_CASES
        assert house.engine is engine, "nobody killed it"
