"""The prober against a gateway that does everything wrong: what it must notice, and that it never waits."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tests.prober.cases import Case, Question
from tests.prober.fake_gateway import FakeGateway
from tests.prober.loads import Load
from tests.prober.probe import Door, Manner, Prober
from tests.prober.verdicts import Verdict

TOKENS = (11, 12, 13, 14, 15, 16, 17, 18)
ONE = Load(rate=1000, seconds=0.001, tokens=(8, 8), is_fixed=True)
TEN = Load(rate=1000, seconds=0.01, tokens=(8, 8), is_fixed=True)


@pytest.fixture
async def house():
    """A fake gateway, a prober, and a way to send a load to it."""
    async with AsyncExitStack() as stack:
        gateway = FakeGateway(TOKENS)
        address = await stack.enter_async_context(gateway.serving())
        doors = [Door(f"door-{index}", address) for index in range(2)]
        for door in doors:
            stack.push_async_callback(door.close)
        yield House(gateway, Prober([Case(Question((1, 2)), TOKENS)]), doors)


class House:
    """The parts of a test."""

    def __init__(self, gateway, prober, doors):
        self.gateway, self.prober, self.doors = gateway, prober, doors

    async def send(self, load=ONE, **manner):
        how = Manner(self.doors, **manner)
        await self.prober.send(load, scenario="test", model="tiny", manner=how, rng=random.Random(1))

    async def verdicts(self, load=ONE, **manner):
        await self.send(load, **manner)
        await self.prober.settle()
        return [record.finding.verdict for record in self.prober.records]


async def test_a_right_answer_is_right(house):
    assert await house.verdicts() == [Verdict.OK]
    [record] = house.prober.records
    assert (record.code, record.start, record.tries, record.door) == ("OK", "warm", 1, "door-0")
    assert record.sent_s <= record.first_s <= record.last_s


def lose_one(messages):
    return messages[:3] + messages[4:]


def repeat_one(messages):
    return messages[:4] + messages[3:]


def change_one(messages):
    messages[2].token_ids[0] = 99
    return messages


def cut_off(messages):
    return messages[:5]


def end_twice(messages):
    return [*messages, pb.GenerateResponse(completion_tokens=8, finish_reason=pb.FINISH_REASON_STOP)]


def count_anew(messages):
    messages[5].completion_tokens = 1
    return messages


def forget_the_end(messages):
    messages[-1].finish_reason = pb.FINISH_REASON_UNSPECIFIED
    return messages


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lose_one, Verdict.LOST_TOKENS),
        (repeat_one, Verdict.REPEATED_TOKENS),
        (change_one, Verdict.WRONG_TOKENS),
        (cut_off, Verdict.LOST_TOKENS),
        (end_twice, Verdict.TWO_ENDS),
        (count_anew, Verdict.WRONG_COUNT),
        (forget_the_end, Verdict.UNENDED),
    ],
)
async def test_what_is_wrong_with_an_answer_is_noticed(house, change, verdict):
    house.gateway.change = change
    assert await house.verdicts() == [verdict]


async def test_a_refused_request_is_lost_and_the_status_is_kept(house):
    house.gateway.refusals = [grpc.StatusCode.UNAVAILABLE]
    assert await house.verdicts() == [Verdict.LOST]
    assert (house.prober.records[0].code, house.prober.records[0].message) == ("UNAVAILABLE", "refused")


async def test_a_request_without_an_answer_is_lost_at_its_deadline(house):
    house.gateway.is_open.clear()
    assert await house.verdicts(timeout_s=0.2) == [Verdict.LOST]
    assert house.prober.records[0].code == "DEADLINE_EXCEEDED"


async def test_a_client_that_tries_again_takes_another_door_and_its_first_failure_is_kept(house):
    house.gateway.refusals = [grpc.StatusCode.UNAVAILABLE]
    assert await house.verdicts(tries=2) == [Verdict.OK]
    [record] = house.prober.records
    assert (record.tries, record.first_code, record.code) == (2, "UNAVAILABLE", "OK")


async def test_a_gateway_that_is_not_there_loses_an_impatient_client(house):
    door = Door("nobody", "127.0.0.1:1")
    how = Manner([door], is_patient=False)
    await house.prober.send(ONE, scenario="test", model="tiny", manner=how, rng=random.Random(1))
    await house.prober.settle()
    await door.close()
    assert [record.finding.verdict for record in house.prober.records] == [Verdict.LOST]


async def test_slow_answers_delay_no_other_request(house):
    house.gateway.is_open.clear()
    await house.send(TEN)
    async with asyncio.timeout(10):
        for _ in range(10):
            await house.gateway.arrived.get()
    assert len(house.prober.records) == 10, "all were sent, though none was answered"
    house.gateway.is_open.set()
    await house.prober.settle()
    assert {record.finding.verdict for record in house.prober.records} == {Verdict.OK}


async def test_a_load_without_an_end_stops_when_told(house):
    stop = asyncio.Event()
    sending = asyncio.create_task(
        house.prober.send(
            Load(rate=200), scenario="test", model="tiny", manner=Manner(house.doors), rng=random.Random(1), stop=stop
        )
    )
    async with asyncio.timeout(10):
        await house.gateway.arrived.get()
    stop.set()
    await sending
    await house.prober.settle()
    assert {record.finding.verdict for record in house.prober.records} == {Verdict.OK}


async def test_a_long_load_asks_only_cases_whose_answers_are_long(house):
    house.prober.cases = [Case(Question((1,)), TOKENS[:3]), Case(Question((2,)), TOKENS)]
    long = Load(rate=1000, seconds=0.02, tokens=(8, 8), is_fixed=True, is_long=True)
    await house.verdicts(long)
    assert {record.ask.case for record in house.prober.records} == {1}
    asked = [house.gateway.arrived.get_nowait() for _ in house.prober.records]
    assert {tuple(request.token_ids.ids) for request in asked} == {(2,)}
