"""Answers bound by a grammar, seen from the front: what the engine gets, how they end; hostile ones hurt nobody."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import StepOutputs
from dormouse_worker.front.testing import EOS
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
A = 64  # the token of the letter a in the tests' vocabulary
YES = pb.StructuredOutputs(choice={"options": ["yes"]})


async def test_the_engine_gets_the_grammar_with_the_models_end_for_every_choice(house):
    await house.collect("hi", n=2, structured_outputs=YES, ignore_eos=True)
    first, second = (added.sampling for added in house.engine.engine.received[-2:])
    assert first.grammar == second.grammar
    assert first.grammar.end_token_ids == (EOS,)
    assert EOS in first.stop_token_ids, "nothing can follow where a grammar ends"
    await house.collect("hi", ignore_eos=True)
    assert house.engine.engine.received[-1].sampling.grammar is None


BAD = {
    "no constraint": (pb.StructuredOutputs(), "sampling_params.structured_outputs is no constraint"),
    "no schema": (
        pb.StructuredOutputs(json_schema="{"),
        "structured_outputs.json_schema is refused (json_schema is no JSON",
    ),
    "nobody keeps it": (pb.StructuredOutputs(json_schema='{"not": {}}'), 'Unimplemented keys: ["not"]'),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_cannot_be_kept_is_refused_before_the_engine_hears_of_it(house, case):
    asked, words = BAD[case]
    refused = await house.refusal(house.generate("hi", structured_outputs=asked).read())
    assert refused.code() is Code.INVALID_ARGUMENT
    assert words in refused.details()
    assert not house.engine.engine.has_work
    assert await house.collect("still here")


async def test_others_are_answered_while_a_schema_compiles_for_ever(house):
    endless = pb.StructuredOutputs(json_schema='{"type": "integer", "multipleOf": 99999989}')
    call = house.generate("hi", structured_outputs=endless, timeout=60)
    refused = asyncio.ensure_future(house.refusal(call.read()))
    for _ in range(20):
        assert await house.collect("hi")
    assert "(it took " in (await refused).details()


async def test_an_answer_whose_grammar_leaves_no_token_is_the_callers_error(house):
    call = await house.begin_request()
    load = {"running": 0, "waiting": 0, "kv_cache_usage": 0.0}
    house.engine.say(StepOutputs([], **load, refused={house.engine.engine.received[-1].request_id: "nothing is left"}))
    refused = await house.refusal(call.read())
    assert refused.code() is Code.INVALID_ARGUMENT
    assert refused.details().startswith("sampling_params.structured_outputs cannot be kept: nothing is left (worker")


async def test_a_resume_after_the_grammars_end_ends_at_once_whatever_min_tokens_says(open_house):
    async with open_house(Script(tokens=(A,))) as house:
        ask = {"seed": 3, "max_tokens": 5, "min_tokens": 4, "metadata": proof(Role.GATEWAY)}
        resume = pb.Resume(output_token_ids=[A, EOS], emitted_utf8_bytes=1)
        (message,) = await house.collect("hi", resume=resume, structured_outputs=YES, **ask)
        assert (message.text, message.finish_reason) == ("", pb.FINISH_REASON_STOP)
        goes_on = await house.collect("hi", resume=resume, **ask)
        assert goes_on[-1].completion_tokens == 5
