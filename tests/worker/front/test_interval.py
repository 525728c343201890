"""`stream_interval`: fewer and larger messages that say the same."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.limits import MAX_STREAM_INTERVAL
from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.testing.fake_engine import Script

INTERVALS = (0, 1, 2, 3, 7, MAX_STREAM_INTERVAL)


def joined(messages):
    """Return what an answer of one choice says, however it was cut into messages."""
    whole = pb.GenerateResponse()
    for message in messages:
        whole.text += message.text
        whole.token_ids.extend(message.token_ids)
        whole.logprobs.extend(message.logprobs)
        whole.prompt_logprobs.extend(message.prompt_logprobs)
    last = messages[-1]
    whole.completion_tokens, whole.finish_reason = last.completion_tokens, last.finish_reason
    whole.matched_stop, whole.seed = last.matched_stop, messages[0].seed
    whole.usage.CopyFrom(last.usage)
    return whole


async def script_of(house, text):
    """Let the engine say the text over and over."""
    house.engine.engine.script = Script(tokens=tuple((await house.tokenize(text)).token_ids))


@pytest.mark.parametrize(
    "ask",
    [
        {},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"stop": ["b✓a"]},
        {"stop": ["b✓a", "zzz"], "include_stop_str_in_output": True, "min_tokens": 9},
        {"max_tokens": 3},  # ends within a character
        {"max_tokens": 1},
    ],
)
async def test_joined_the_messages_say_the_same_whatever_the_interval(house, ask):
    await script_of(house, "a✓b✓")
    ask = {"seed": 5, "max_tokens": 40, **ask}
    answers = [joined(await house.collect("hi", stream_interval=interval, **ask)) for interval in INTERVALS]
    assert answers[0].text
    assert answers == [answers[0]] * len(INTERVALS)


@pytest.mark.parametrize("interval", INTERVALS)
async def test_a_resumed_answer_says_the_same_whatever_the_interval(house, interval):
    await script_of(house, "a✓b✓")
    ask = {"seed": 5, "max_tokens": 20, "stop": ["b✓a✓"]}
    whole = joined(await house.collect("hi", **ask))
    for cut in range(1, len(whole.token_ids)):
        resume = pb.Resume(output_token_ids=whole.token_ids[:cut])
        rest = await house.collect("hi", metadata=proof(Role.GATEWAY), resume=resume, stream_interval=interval, **ask)
        assert "".join(message.text for message in rest) == whole.text
        assert [token for message in rest for token in message.token_ids] == whole.token_ids[cut:]
        assert rest[-1].usage == whole.usage


async def until_added(house, count):
    await house.engine.until_received(lambda m: isinstance(m, AddRequest) and m.request_id == str(count))


async def test_the_first_token_comes_at_once_then_so_many_at_a_time_and_the_last_ones_with_the_end(house):
    house.engine.is_paused = True
    call = house.generate([1, 2, 3], max_tokens=12, stream_interval=4)
    await until_added(house, 1)
    house.engine.step()
    assert list((await call.read()).token_ids) == [1]
    sizes = []
    for num_steps in (4, 4, 3):
        for _ in range(num_steps):
            house.engine.step()
        sizes.append(len((await call.read()).token_ids))
    assert sizes == [4, 4, 3]


async def test_every_choice_of_a_call_has_its_own_interval(house):
    house.engine.is_paused = True
    call = house.generate([1, 2], n=2, max_tokens=7, stream_interval=3)
    await until_added(house, 2)
    for _ in range(7):
        house.engine.step()
    messages = [message async for message in call]
    for index in range(2):
        mine = [message for message in messages if message.choice_index == index]
        assert sum(len(message.token_ids) for message in mine) == 7
        assert [bool(message.finish_reason) for message in mine] == [False] * (len(mine) - 1) + [True]


async def test_who_asks_for_an_interval_gets_fewer_messages_and_disturbs_nobody(house):
    house.engine.is_paused = True
    calls = [house.generate([9], max_tokens=60, stream_interval=interval) for interval in (30, 1)]
    await until_added(house, 2)
    told = [asyncio.create_task(read_all(call)) for call in calls]
    for _ in range(60):
        house.engine.step()
        await asyncio.sleep(0)
    seldom, often = await asyncio.gather(*told)
    assert [token for message in seldom for token in message.token_ids] == [9] * 60
    assert [token for message in often for token in message.token_ids] == [9] * 60
    assert len(seldom) <= 3


async def read_all(call):
    return [message async for message in call]
