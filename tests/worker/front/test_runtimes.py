"""A front before vLLM's engine: what it claims, and what it refuses by name before the engine hears of it."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.capabilities import Capability
from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AddRequest
from tests.worker.front.test_answer_parts import chat

VLLM = {"runtime": "vllm"}
RESUME = pb.Resume(output_token_ids=[5])
FORCED = pb.AnswerParsing(any_function=True)
STRICT = pb.AnswerParsing(tool_calls=True, tool_call_parser="hermes")
JSON = pb.StructuredOutputs(json_object=True)


async def test_it_claims_what_the_engine_keeps_and_its_own(open_house):
    async with open_house(engine=VLLM) as house:
        claimed = (await house.operate("GetStatus")).capabilities
        assert set(claimed) == {Capability.STANDBY, Capability.RELAY, Capability.PREFIX_CACHE}
    async with open_house(engine={**VLLM, "enable_prefix_caching": False}) as house:
        assert set((await house.operate("GetStatus")).capabilities) == {Capability.STANDBY, Capability.RELAY}


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"resume": RESUME}, "resume is set; allowed: not set"),
        ({"structured_outputs": JSON}, "sampling_params.structured_outputs is set; allowed: not set"),
        ({"logprob_token_ids": [3]}, "sampling_params.logprob_token_ids is set; allowed: not set"),
        ({"temperature": 2.5}, "sampling_params.temperature is 2.5; allowed: 0, or from 0.01 to 2"),
        ({"temperature": 0.001}, "sampling_params.temperature is 0.001; allowed: 0, or from 0.01 to 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_vllm_does_not_do_is_refused_by_name_before_it_hears_of_it(open_house, request_fields, words):
    async with open_house(engine=VLLM) as house:
        refusal = await house.refusal(house.collect([1, 2], metadata=proof(Role.GATEWAY), **request_fields))
        assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal.details().startswith(words)
        assert "runtime is vllm" in refusal.details()
        assert not [message for message in house.engine.engine.received if isinstance(message, AddRequest)]


@pytest.mark.parametrize(("parsing", "words"), [(FORCED, "with a call that is forced"), (STRICT, "strict for 'now'")])
async def test_calls_that_bind_the_answer_are_refused_by_name(open_house, parsing, words):
    async with open_house(engine=VLLM) as house:
        refusal = await house.refusal(house.collect(chat("now", strict=True), answer_parsing=parsing))
        assert (refusal.code(), words in refusal.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert "runtime is vllm" in refusal.details()


async def test_an_image_is_refused_by_name(open_house):
    asked = pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart(image=b"picture")])])
    async with open_house(engine=VLLM) as house:
        refusal = await house.refusal(house.collect(asked))
        assert (refusal.code(), "parts[0].image is set" in refusal.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            True,
        )


async def test_a_decision_is_refused_by_name(open_house):
    async with open_house(engine=VLLM) as house:
        refusal = await house.refusal(house.inference.Decide(pb.DecideRequest(), timeout=90))
        assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "Decide asks for the log-probabilities of named tokens" in refusal.details()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("call", ["PrepareSleep", "Sleep"])
async def test_levels_that_the_engine_does_not_have_are_refused_and_nobody_is_turned_away(open_house, call, level):
    async with open_house(engine=VLLM) as house:
        refusal = await house.refusal(house.operate(call, level=level))
        assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"level is {level}; with runtime vllm only 3 is there" in refusal.details()
        assert len(await house.tokens()) == 4


async def test_what_both_engines_do_is_served(open_house):
    async with open_house(engine=VLLM) as house:
        assert len(await house.tokens(temperature=2.0, seed=1, logprobs=2)) == 4
