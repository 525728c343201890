"""n answers to one prompt: told apart, interleaved, ended together where one fails, and freed together."""

from __future__ import annotations

from collections import defaultdict

import grpc
import pytest

from dormouse_api.status import retry_after_s
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AbortRequests, AddRequest, StepOutputs, TokenOutput
from dormouse_worker.testing.fake_engine import Script, fake_prompt_logprobs

Code = grpc.StatusCode


def by_choice(messages):
    """Return the messages of each choice."""
    found = defaultdict(list)
    for message in messages:
        found[message.choice_index].append(message)
    return found


def added(house):
    return [message for message in house.engine.engine.received if isinstance(message, AddRequest)]


async def until_added(house, count):
    await house.engine.until_received(lambda m: isinstance(m, AddRequest) and m.request_id == str(count))
    return added(house)


async def test_each_choice_has_its_own_tokens_text_end_and_timings(open_house):
    async with open_house(Script(tokens=(65, 66, 67, 68))) as house:
        found = by_choice(await house.collect("x", n=3, max_tokens=2))
        tokens = {index: [t for m in messages for t in m.token_ids] for index, messages in found.items()}
        assert tokens == {0: [65, 66], 1: [66, 67], 2: [67, 68]}
        for messages in found.values():
            assert [bool(m.finish_reason) for m in messages] == [False] * (len(messages) - 1) + [True]
            assert messages[-1].timings.prefill_seconds == 0.5
            assert messages[-1].completion_tokens == 2
            assert not any(m.HasField("timings") for m in messages[:-1])


async def test_usage_stands_once_and_sums_seed_and_id_stand_in_the_first_message(open_house):
    async with open_house(Script(cached_tokens=3)) as house:
        first, *others = await house.collect("hello", n=16, max_tokens=4, request_id="mine", seed=5)
        assert (first.request_id, first.seed) == ("mine", 5)
        assert not any(m.request_id or m.HasField("seed") for m in others)
        assert [m.HasField("usage") for m in (first, *others)] == [False] * len(others) + [True]
        usage = others[-1].usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 64, 3)


async def test_the_engine_gets_one_request_for_each_with_the_same_seed_and_its_index(house):
    await house.collect("hi", n=3, prompt_logprobs=1, priority=7)
    requests = added(house)
    assert [r.sampling.choice_index for r in requests] == [0, 1, 2]
    assert len({r.sampling.seed for r in requests}) == 1
    assert [r.sampling.prompt_logprobs for r in requests] == [1, None, None]
    assert [(r.prompt_token_ids, r.priority) for r in requests] == [(requests[0].prompt_token_ids, 7)] * 3


async def test_a_caller_who_leaves_frees_all_that_still_run(house):
    house.engine.is_paused = True
    stream = house.generate("hi", n=3, max_tokens=9)
    await until_added(house, 3)
    house.engine.say(StepOutputs([TokenOutput("2", [1], "length")], running=2, waiting=0, kv_cache_usage=0.0))
    assert (await stream.read()).choice_index == 1
    stream.cancel()
    aborted = await house.engine.until_received(lambda m: isinstance(m, AbortRequests))
    assert aborted.request_ids == ["1", "3"]
    house.front.worker.requests.check_integrity()
    assert len(house.front.worker.requests) == 0


async def test_one_that_fails_ends_the_call_and_frees_the_others(house):
    house.engine.is_paused = True
    stream = house.generate("hi", n=3, max_tokens=9)
    await until_added(house, 3)
    tokens = [TokenOutput(key, [1]) for key in "123"]
    house.engine.say(StepOutputs(tokens, running=3, waiting=0, kv_cache_usage=0.0, failed={"2": "out of luck"}))
    aborted = await house.engine.until_received(lambda m: isinstance(m, AbortRequests))
    assert aborted.request_ids == ["1", "3"]
    assert {(await stream.read()).choice_index for _ in range(3)} == {0, 1, 2}, "what was there before is not lost"
    refused = await house.refusal(stream.read())
    assert (refused.code(), "out of luck" in refused.details()) == (Code.INTERNAL, True)
    house.front.worker.requests.check_integrity()


async def test_a_stop_string_ends_only_its_choice(open_house):
    async with open_house(Script(tokens=(64, 65, 66, 67))) as house:
        found = by_choice(await house.collect("x", n=2, max_tokens=3, stop=["abc"]))
        assert [m[-1].finish_reason for _, m in sorted(found.items())] == [
            pb.FINISH_REASON_STOP,
            pb.FINISH_REASON_LENGTH,
        ]
        assert "".join(m.text for m in found[1]) == "bcd"


async def test_the_queue_limit_counts_every_choice(open_house):
    async with open_house(max_waiting_requests=4) as house:
        house.engine.is_paused = True
        waiting = house.generate("hi", n=3)
        await until_added(house, 3)
        refused = await house.refusal(house.generate("hi", n=2).read())
        assert refused.code() is Code.RESOURCE_EXHAUSTED
        assert [word for word in ("3 requests", "2 more", "4") if word not in refused.details()] == []
        assert retry_after_s(refused) > 0
        single = house.generate("hi")
        await until_added(house, 4)
        house.front.worker.requests.check_integrity()
        for call in (waiting, single):
            call.cancel()


async def test_more_choices_than_the_queue_holds_are_refused_for_good(open_house):
    async with open_house(max_waiting_requests=2) as house:
        refused = await house.refusal(house.generate("hi", n=3).read())
        assert refused.code() is Code.INVALID_ARGUMENT
        assert [word for word in ("sampling_params.n", "3", "2") if word not in refused.details()] == []


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_prompt_logprobs_come_once_in_order_with_the_prompts_tokens(house, num_choices):
    prompt = [9, 7, 5, 3]
    messages = await house.collect(prompt, n=num_choices, prompt_logprobs=2, max_tokens=2)
    assert {m.choice_index for m in messages if m.prompt_logprobs} == {0}
    given = [p for m in messages for p in m.prompt_logprobs]
    assert [p.sampled.token_id for p in given] == prompt[1:]
    assert [p.sampled.logprob for p in given] == [-7.0, -5.0, -3.0]
    assert [[t.token_id for t in p.top] for p in given] == [[0, 1]] * 3


async def test_prompt_logprobs_over_several_chunks_keep_their_places(house):
    house.engine.is_paused = True
    stream = house.generate([9, 7, 5, 3], prompt_logprobs=0, max_tokens=1)
    (request,) = await until_added(house, 1)
    parts = fake_prompt_logprobs(request)
    for part in (parts[:1], parts[1:]):
        told = TokenOutput("1", [], prompt_logprobs=part)
        house.engine.say(StepOutputs([told], running=1, waiting=0, kv_cache_usage=0.0))
        message = await stream.read()
        assert [-p.sampled.logprob for p in message.prompt_logprobs] == [
            p.sampled.token_id for p in message.prompt_logprobs
        ]
    stream.cancel()
