"""What an answer says, thinks and calls comes in its messages, told apart, wherever the answer is cut and goes on."""

from __future__ import annotations

import json

import grpc
import pytest
from google.protobuf import struct_pb2

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.testing.fake_engine import Script

CALL = '<think>H</think>S[TOOL_CALLS]now[ARGS]{"z": "é"}'  # within the tests' 64 tokens
ALL = pb.AnswerParsing(tool_calls=True, reasoning=True, tool_call_parser="mistral", reasoning_parser="think")


def chat(*names: str) -> pb.Chat:
    tools = []
    for name in names:
        tool = struct_pb2.Struct()
        tool.update({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
        tools.append(tool)
    return pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], tools=tools)


def told(messages) -> dict[str, str]:
    """Return what the parts of some messages say."""
    parts = [part for message in messages for part in message.parts]
    return {
        "content": "".join(part.content for part in parts),
        "reasoning": "".join(part.reasoning for part in parts),
        "called": ",".join(part.call.name for part in parts if part.HasField("call")),
        "arguments": "".join(part.arguments.json for part in parts),
    }


async def test_an_answer_is_told_apart_beside_its_text(open_house):
    async with open_house() as house:
        tokens = tuple((await house.tokenize(CALL)).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        messages = await house.collect(chat("now"), answer_parsing=ALL, max_tokens=len(tokens))
        assert "".join(message.text for message in messages) == CALL
        assert told(messages) == {"content": "S", "reasoning": "H", "called": "now", "arguments": '{"z":"é"}'}


async def test_parts_are_the_same_wherever_another_worker_goes_on(open_house):
    async with open_house() as house:
        tokens = list((await house.tokenize(CALL)).token_ids)
        house.engine.engine.script = Script(tokens=tuple(tokens))
        for cut in range(1, len(tokens), 3):
            ask = {"seed": 3, "max_tokens": len(tokens), "answer_parsing": ALL}
            stream = house.generate(chat("now"), **ask)
            had = []
            while sum(len(message.token_ids) for message in had) < cut:
                had.append(await stream.read())
            stream.cancel()
            ids = [token for message in had for token in message.token_ids]
            known = "".join(message.text for message in had)
            resume = pb.Resume(output_token_ids=ids, emitted_utf8_bytes=len(known.encode()))
            rest = await house.collect(chat("now"), metadata=proof(Role.GATEWAY), resume=resume, **ask)
            expected = {"content": "S", "reasoning": "H", "called": "now", "arguments": '{"z":"é"}'}
            assert told([*had, *rest]) == expected, cut


async def test_nothing_is_told_apart_unless_asked(open_house):
    async with open_house(Script(tokens=(64, 65))) as house:
        messages = await house.collect(chat("now"), max_tokens=4)
        assert not any(message.parts for message in messages)


@pytest.mark.parametrize(
    ("prompt", "parsing", "field"),
    [
        ("hi", ALL, "answer_parsing"),
        (chat("now"), pb.AnswerParsing(tool_call_parser="hermse"), "answer_parsing.tool_call_parser"),
        (chat("now"), pb.AnswerParsing(reasoning_parser="hermes"), "answer_parsing.reasoning_parser"),
        (chat("now"), pb.AnswerParsing(function="then"), "answer_parsing.function"),
    ],
)
async def test_what_cannot_be_told_apart_is_refused_by_name(house, prompt, parsing, field):
    error = await house.refusal(house.collect(prompt, answer_parsing=parsing))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in error.details()


async def test_a_forced_function_gets_the_whole_answer_as_arguments(open_house):
    async with open_house() as house:
        tokens = tuple((await house.tokenize('{"zone": 1}')).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        parsing = pb.AnswerParsing(tool_calls=True, function="now")
        said = told(await house.collect(chat("now"), answer_parsing=parsing, max_tokens=len(tokens)))
        assert (said["called"], json.loads(said["arguments"]), said["content"]) == ("now", {"zone": 1}, "")
