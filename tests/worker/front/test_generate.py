"""Generate as a caller sees it: the stream, its end, its refusals, and that nobody disturbs anybody else."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio

from dormouse_api.status import retry_after_s
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AbortRequests, AddRequest, State, StepOutputs
from dormouse_worker.testing.fake_engine import Script
from tests.waiting import until

Code = grpc.StatusCode
EOS = 257
CONTINUATION = 222  # the token of the byte 0x80, which goes on with a character that never began


def is_add(message):
    return isinstance(message, AddRequest)


def is_abort(message):
    return isinstance(message, AbortRequests)


async def test_calls_beyond_the_limit_are_refused_at_once(open_house):
    """A caller who never reads keeps its call: this limit bounds what the front keeps for all of them."""
    async with open_house(max_open_calls=2) as house:
        house.engine.is_paused = True
        calls = [house.generate([n]) for n in range(2)]
        await house.engine.until_received(lambda m: is_add(m) and m.request_id == "2")
        assert (await house.refusal(house.tokenize("hi"))).code() is Code.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()


async def test_tokens_stream_and_the_last_message_carries_usage_and_timings(house):
    messages = await house.collect("hello", max_tokens=5)
    assert "".join(m.text for m in messages) == "hello"
    assert [t for m in messages for t in m.token_ids] == list((await house.tokenize("hello")).token_ids)
    *_, last = messages
    assert last.finish_reason == pb.FINISH_REASON_LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.completion_tokens) == (5, 5, 5)
    assert (last.timings.queue_seconds, last.timings.prefill_seconds) == (0.25, 0.5)


async def test_exactly_one_message_has_a_finish_reason_and_it_is_the_last(house):
    messages = await house.collect("hello", max_tokens=30)
    assert [bool(m.finish_reason) for m in messages] == [False] * (len(messages) - 1) + [True]


async def test_seed_and_id_are_drawn_if_unset_and_stand_in_the_first_message_only(house):
    first, *others = await house.collect([1, 2], max_tokens=20)
    added = house.engine.engine.received[-1]
    assert first.HasField("seed")
    assert first.seed == added.sampling.seed
    assert first.request_id
    assert not any(m.HasField("seed") or m.request_id for m in others)
    again, *_ = await house.collect([1, 2])
    assert again.seed != first.seed
    kept, *_ = await house.collect([1, 2], seed=2**64 - 1, request_id="mine")
    assert (kept.seed, kept.request_id) == (2**64 - 1, "mine")


async def test_a_client_that_hangs_up_frees_its_sequence_at_once(house):
    house.engine.is_paused = True
    stream = house.generate([1, 2, 3], max_tokens=50)
    added = await house.engine.until_received(is_add)
    house.engine.step()
    await stream.read()
    stream.cancel()
    aborted = await house.engine.until_received(is_abort)
    assert aborted.request_ids == [added.request_id]
    assert len(house.front.worker.requests) == 0


async def test_a_passed_deadline_frees_the_sequence(house):
    house.engine.is_paused = True
    timeout_s = 0.2
    while not any(map(is_add, house.engine.engine.received)):  # on a slow machine it is over before it got there
        refused = await house.refusal(house.generate([1, 2, 3], timeout=timeout_s).read())
        assert refused.code() is Code.DEADLINE_EXCEEDED
        timeout_s *= 4
    added = await house.engine.until_received(is_add)
    assert (await house.engine.until_received(is_abort)).request_ids == [added.request_id]


async def test_at_its_own_deadline_the_call_of_a_caller_who_never_reads_ends_and_is_freed(open_house):
    """More is written than gRPC takes in for a caller that does not read, so the write itself does not end."""
    async with open_house(max_open_calls=1) as house:
        house.engine.is_paused = True
        timeout_s, added = 0.5, []
        while len(added) < 16:  # on a slow machine it is over before all are there
            timeout_s, num_before = timeout_s * 4, len(house.engine.engine.received)
            call = house.generate([7, 8], timeout=timeout_s, n=16, max_tokens=62, logprobs=20, temperature=0)
            added = await all_added(house, call, num_before)
        for _ in range(61):
            house.engine.step()
        assert await call.code() is Code.DEADLINE_EXCEEDED
        aborted = await house.engine.until_received(lambda m: is_abort(m) and added[0] in m.request_ids)
        assert aborted.request_ids == added
        assert len(house.front.worker.requests) == 0
        await until_room(house)


async def all_added(house, call, num_before):
    """Return the ids of the call's 16 sequences once they have reached the engine, or of those that did by its end."""
    received = house.engine.engine.received
    await until(lambda: call.done() or sum(map(is_add, received[num_before:])) == 16)
    return [message.request_id for message in received[num_before:] if is_add(message)]


async def until_room(house):
    """Wait until a call is let in: the one before it holds its place until gRPC has seen its end."""
    while True:
        try:
            return await house.tokenize("hi")
        except aio.AioRpcError as error:
            if error.code() is not Code.RESOURCE_EXHAUSTED:
                raise


async def test_a_stop_string_ends_the_text_and_the_engine_is_told(open_house):
    script = Script(tokens=tuple(b"one two three four"))
    async with open_house(script) as house:
        house.engine.engine.script = Script(tokens=tuple((await house.tokenize("one two three")).token_ids))
        messages = await house.collect("x", max_tokens=60, stop=["zzz", "o th"])
        assert "".join(m.text for m in messages) == "one tw"
        assert messages[-1].matched_stop == "o th"
        assert messages[-1].finish_reason == pb.FINISH_REASON_STOP
        assert is_abort(await house.engine.until_received(is_abort))


async def test_the_end_token_ends_the_stream_and_is_no_text(open_house):
    async with open_house(Script(tokens=(72, 73, EOS))) as house:
        messages = await house.collect("x", max_tokens=9, skip_special_tokens=False)
        assert [t for m in messages for t in m.token_ids] == [72, 73, EOS]
        assert "</s>" not in "".join(m.text for m in messages)
        assert messages[-1].finish_reason == pb.FINISH_REASON_STOP
        on = await house.collect("x", max_tokens=9, ignore_eos=True)
        assert len([t for m in on for t in m.token_ids]) == 9


async def test_logprobs_come_with_their_tokens(house):
    messages = await house.collect([5, 6], max_tokens=3, logprobs=2)
    given = [p for m in messages for p in m.logprobs]
    assert [p.sampled.token_id for p in given] == [t for m in messages for t in m.token_ids]
    assert [[t.logprob for t in p.top] for p in given] == [[-1.0, -2.0]] * 3


async def test_a_reader_that_does_not_read_delays_nobody_and_loses_nothing(house):
    slow = house.generate([7, 8, 9], max_tokens=60)
    await house.engine.until_received(is_add)
    for _ in range(3):
        assert len(await house.collect([1], max_tokens=40)) >= 1
    assert [t async for m in slow for t in m.token_ids] == [7, 8, 9] * 20


async def test_a_failed_step_ends_only_its_requests_with_internal(house):
    house.engine.is_paused = True
    bad, good = house.generate([1]), house.generate([2], max_tokens=1)
    await house.engine.until_received(lambda m: is_add(m) and m.request_id == "2")
    key = next(m.request_id for m in house.engine.engine.received if is_add(m) and m.prompt_token_ids == [1])
    house.engine.say(StepOutputs([], running=1, waiting=0, kv_cache_usage=0.0, failed={key: "out of luck"}))
    refused = await house.refusal(bad.read())
    assert (refused.code(), "out of luck" in refused.details()) == (Code.INTERNAL, True)
    house.engine.step()
    assert (await good.read()).finish_reason == pb.FINISH_REASON_LENGTH


async def test_the_engines_death_ends_every_request_at_once_and_the_front_exits_non_zero(open_house):
    async with open_house() as house:
        house.engine.is_paused = True
        calls = [house.generate([1]), house.generate([2])]
        await house.engine.until_received(lambda m: is_add(m) and m.request_id == "2")
        house.engine.die(-9, "Killed")
        for call in calls:
            refused = await house.refusal(call.read())
            assert refused.code() is Code.UNAVAILABLE
            assert "engine of this worker died" in refused.details()
            assert retry_after_s(refused) > 0
        assert await house.running == 1
        failure = house.front.worker.board.failure
        assert failure.reason == "EngineDied"
        assert "signal 9" in failure.message
        assert "Killed" in failure.message


async def test_a_full_queue_is_refused_with_the_limit_and_when_to_come_again(open_house):
    async with open_house(max_waiting_requests=2) as house:
        house.engine.is_paused = True
        waiting = [house.generate([1]), house.generate([2])]
        await house.engine.until_received(lambda m: is_add(m) and m.request_id == "2")
        refused = await house.refusal(house.generate([3]).read())
        assert refused.code() is Code.RESOURCE_EXHAUSTED
        assert "2" in refused.details()
        assert retry_after_s(refused) > 0
        house.engine.step()  # the two run now: there is room again
        third = house.generate([3], max_tokens=1)
        await house.engine.until_received(lambda m: is_add(m) and m.request_id == "3")
        for call in (*waiting, third):
            call.cancel()


async def test_nobody_is_served_before_the_agreement_and_the_refusal_names_the_state(open_house):
    async with open_house(ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        refused = await house.refusal(house.generate().read())
        assert refused.code() is Code.UNAVAILABLE
        assert "loading" in refused.details()
        assert retry_after_s(refused) > 0
        house.engine.loaded.set()
        await house.until_state(State.PROFILED)
        assert "profiled" in (await house.refusal(house.generate().read())).details()


async def test_no_prompt_at_all_is_refused(house):
    refused = await house.refusal(house.inference.Generate(pb.GenerateRequest()).read())
    assert (refused.code(), "prompt" in refused.details()) == (Code.INVALID_ARGUMENT, True)


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(house):
    refused = await house.refusal(house.generate(model="nobody").read())
    assert refused.code() is Code.NOT_FOUND
    assert "tiny, team/tiny" in refused.details()
    assert await house.collect(model="team/tiny")


async def test_a_top_k_above_the_vocabulary_means_all_of_it(house):
    await house.collect([1], top_k=10**6)
    assert house.engine.engine.received[-1].sampling.top_k == 260


async def test_max_tokens_is_by_default_the_room_that_the_prompt_leaves(house):
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 60))
    assert [t async for m in house.inference.Generate(request) for t in m.token_ids] == [1] * 4


async def test_three_hundred_requests_at_once_each_end_exactly_once(open_house):
    async with open_house() as house:
        streams = await asyncio.gather(*(house.collect([n % 250], max_tokens=3) for n in range(300)))
        assert all([t for m in s for t in m.token_ids] == [n % 250] * 3 for n, s in enumerate(streams))
        assert all(sum(bool(m.finish_reason) for m in s) == 1 for s in streams)
        assert (len(house.front.worker.requests), house.front.worker.requests.num_accepted) == (0, 300)


async def test_a_chat_is_rendered_by_the_models_template(house):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    await house.collect(chat)
    told = await house.inference.Tokenize(pb.TokenizeRequest(chat=chat))
    assert told.rendered_text == "<|user|>hi<|assistant|>"
    assert house.engine.engine.received[-1].prompt_token_ids == list(told.token_ids)
    assert told.token_ids[0] == 258


async def test_tokenize_detokenize_and_get_model_answer_while_loading(open_house):
    async with open_house(ready=False, loaded=False) as house:
        tokens = (await house.tokenize("héllo")).token_ids
        assert (await house.inference.Detokenize(pb.DetokenizeRequest(token_ids=tokens))).text == "héllo"
        described = await house.inference.GetModel(pb.GetModelRequest(model="tiny"))
        assert {"resume", "relay", "sleep_level_1"} <= set(described.capabilities)
        assert (described.architecture, described.vocab_size, described.num_parameters) == ("LlamaForCausalLM", 260, 0)
        assert (described.max_model_len, list(described.eos_token_ids)) == (64, [EOS])
        assert described.has_chat_template
        assert len(described.model_digest) == 64
        house.engine.loaded.set()
        await house.make_ready()
        assert (await house.inference.GetModel(pb.GetModelRequest())).num_parameters == 1234


async def test_tokens_are_told_one_by_one_with_what_is_no_whole_character_marked(house):
    tokens = (await house.tokenize("hé")).token_ids
    asked = pb.DetokenizeRequest(token_ids=tokens, separately=True)
    told = await house.inference.Detokenize(asked)
    assert [text for text in told.token_texts if text][-3:] == ["h", "\ufffd", "\ufffd"]
    assert (len(told.token_texts), told.text) == (len(tokens), "")


async def test_a_broken_call_is_refused_though_other_calls_go_on(house):
    with pytest.raises(aio.AioRpcError) as caught:
        await house.inference.Detokenize(pb.DetokenizeRequest(token_ids=[260]))
    assert caught.value.code() is Code.INVALID_ARGUMENT


async def test_what_ends_within_a_character_is_said_as_detokenize_says_it(house):
    ids = list((await house.tokenize("a✓")).token_ids)[:-1]
    messages = await house.collect(ids, max_tokens=len(ids))
    whole = await house.inference.Detokenize(pb.DetokenizeRequest(token_ids=ids), timeout=90)
    assert "".join(message.text for message in messages) == whole.text == "a\ufffd"


async def test_a_stream_of_bytes_that_never_make_a_character_is_text_all_along(open_house):
    async with open_house(Script(tokens=(CONTINUATION,))) as house:
        messages = await house.collect([1], max_tokens=20, n=2)
        texts = {index: "".join(m.text for m in messages if m.choice_index == index) for index in range(2)}
        assert texts == dict.fromkeys(range(2), "\ufffd" * 20)
