"""Limits at the gateway: alone, by an operator that counts, and while that one hangs or goes away."""

import asyncio
import hashlib
from contextlib import AsyncExitStack

import grpc
import pytest
from grpc import aio

from dormouse_api.quotas import Quota
from dormouse_api.status import retry_after_s
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_gateway.clients.counting import ASSUMED_TOKENS, Counting, LimitReached
from dormouse_gateway.clients.key_files import ApiKey
from dormouse_kube.api import INFERENCE_KEYS
from tests.gateway.clients.test_inference_keys import bearer, infk
from tests.gateway.kit import ask, refusal_of, tokens_of
from tests.waiting import until


class Clock:
    """A clock that is stepped."""

    def __init__(self, now_s=1000.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def key(**limits):
    return ApiKey("team/a", hashlib.sha256(b"a").digest(), quota=Quota(**limits))


async def let_in(counting, api_key, tokens=0):
    async with counting.admit(api_key, 1) as admission:
        admission.add(tokens)
    return admission


async def refused(counting, api_key):
    with pytest.raises(LimitReached) as caught:
        await let_in(counting, api_key)
    return caught.value


async def test_alone_a_gateway_takes_its_part_of_any_minute_and_says_when_there_is_room():
    clock = Clock()
    counting, limited = Counting(num_gateways=2, clock=clock, wall=clock), key(requests_per_minute=4)
    for _ in range(2):
        await let_in(counting, limited)
    error = await refused(counting, limited)
    assert (error.code, error.retry_after_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 61.0)
    assert error.message == "the API key team/a may use 2 requests per minute"
    assert dict(error.headers)["x-ratelimit-remaining-requests"] == "0"
    clock.now_s += 61.0
    await let_in(counting, limited)


async def test_a_refusal_holds_until_its_time_but_not_for_other_limits():
    clock = Clock()
    counting = Counting(clock=clock, wall=clock)
    await let_in(counting, key(requests_per_minute=1))
    await refused(counting, key(requests_per_minute=1))
    clock.now_s += 30.0
    assert (await refused(counting, key(requests_per_minute=1))).retry_after_s == 31.0
    await let_in(counting, key(requests_per_minute=2))


async def test_tokens_are_reserved_by_the_average_and_settled_at_the_end():
    clock = Clock()
    counting, limited = Counting(clock=clock, wall=clock), key(tokens_per_minute=1000)
    admission = await let_in(counting, limited, tokens=100)
    assert dict(admission.headers)["x-ratelimit-remaining-tokens"] == str(1000 - ASSUMED_TOKENS)
    again = await let_in(counting, limited, tokens=900)
    assert int(dict(again.headers)["x-ratelimit-remaining-tokens"]) == 1000 - 100 - round(256 - 15.6)
    error = await refused(counting, limited)
    assert error.message == "the API key team/a may use 1000 tokens per minute"
    assert error.retry_after_s == 61.0


async def test_an_answer_that_grows_beyond_what_was_reserved_counts_as_it_grows():
    clock = Clock()
    counting, limited = Counting(clock=clock, wall=clock), key(tokens_per_minute=1000)
    async with counting.admit(limited, 1) as admission:
        for _ in range(1000):
            admission.add(1)
        await refused(counting, limited)


async def test_a_clock_that_jumps_opens_no_minute():
    """The wall clock decides about days only."""
    steady, wall = Clock(), Clock(86_400.0 * 10)
    counting, limited = Counting(clock=steady, wall=wall), key(requests_per_minute=1)
    await let_in(counting, limited)
    for jump_s in (3600.0, -7200.0):
        wall.now_s += jump_s
        await refused(counting, limited)


class Operator:
    """One that counts: answers are the test's."""

    def __init__(self, counting):
        self.counting, self.told = counting, []
        self.task = asyncio.create_task(self._listen())

    async def _listen(self):
        async for told in self.counting.questions(lambda: False):
            self.told.append(told)

    @property
    def asked(self):
        return [question for told in self.told for question in told.questions]

    def answer(self, number, *, is_granted=True, **fields):
        answer = pb.LimitAnswer(id=number, is_granted=is_granted, **fields)
        self.counting.answer(pb.LimitAnswers(answers=[answer], num_gateways=4))

    async def go(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_an_operator_that_counts_is_asked_and_what_it_says_holds():
    clock = Clock()
    counting, limited = Counting(clock=clock, wall=clock), key(requests_per_minute=1, tokens_per_day=9)
    operator = Operator(counting)
    await until(lambda: operator.told)
    asking = [asyncio.create_task(let_in(counting, limited)) for _ in range(2)]
    await until(lambda: len(operator.asked) == 2)
    assert len(operator.told) == 2, "what is asked at once goes together"
    first = operator.asked[0]
    assert (first.key, first.requests_per_minute, first.tokens_per_day, first.tokens_per_minute) == ("team/a", 1, 9, 0)
    state = pb.LimitState(limit=1, remaining=0, reset_seconds=3.5)
    operator.answer(operator.asked[0].id, requests=state)
    said = {"retry_after_seconds": 3.5, "reached": "1 requests per minute", "is_final": True, "requests": state}
    operator.answer(operator.asked[1].id, is_granted=False, **said)
    admission = await asking[0]
    assert ("x-ratelimit-reset-requests", "3.500s") in admission.headers
    with pytest.raises(LimitReached, match="1 requests per minute"):
        await asking[1]
    await refused(counting, limited)
    assert len(operator.asked) == 2, "what nobody can give back is not asked again"
    await operator.go()


@pytest.mark.parametrize("is_gone", [True, False])
async def test_without_an_answer_the_gateway_counts_alone_with_its_part(is_gone):
    clock = Clock()
    counting, limited = Counting(clock=clock, wall=clock, answer_s=0.01), key(requests_per_minute=8)
    operator = Operator(counting)
    await until(lambda: operator.told)
    asking = asyncio.create_task(let_in(counting, limited))
    await until(lambda: operator.asked)
    operator.answer(operator.asked[0].id)  # and that there are four
    await asking
    if is_gone:
        await operator.go()
        assert not counting.is_shared
    await let_in(counting, limited)
    assert (await refused(counting, limited)).message.endswith("2 requests per minute")
    await operator.go()


async def test_the_next_operator_is_told_all_that_was_used_here_and_the_one_before_ends():
    clock = Clock()
    counting = Counting(clock=clock, wall=clock)
    await let_in(counting, key(requests_per_minute=9, tokens_per_day=1000), tokens=77)
    clock.now_s += 2.0
    former = Operator(counting)
    await until(lambda: former.told)
    operator = Operator(counting)
    await until(lambda: operator.told)
    (hello,) = operator.told
    assert hello.gateway == counting.name
    (use,) = hello.uses
    assert (use.key, use.today.requests, use.today.tokens) == ("team/a", 1, 77)
    assert [(second.age_seconds, second.requests, second.tokens) for second in use.seconds] == [(2.0, 1, 77)]
    await operator.go()
    await former.go()


async def test_nothing_is_remembered_of_a_key_that_used_nothing_of_late():
    clock = Clock()
    counting = Counting(clock=clock, wall=clock)
    await let_in(counting, key(requests_per_minute=9))
    counting.forget()
    assert repr(counting) == "Counting(alone, 1 keys)"
    clock.now_s += 86_400.0
    counting.forget()
    assert repr(counting) == "Counting(alone, 0 keys)"


async def test_grpc_says_when_to_come_again_and_what_an_answer_took_counts(make_house, workers):
    async with make_house() as house:
        await house.add("tiny", workers[:1])
        house.kube.put(INFERENCE_KEYS, infk("a", requestsPerMinute=1, tokensPerDay=1000))
        await until(house.gateway._keys.objects.names)
        call = ask(house, metadata=aio.Metadata(*bearer("a-secret")))
        assert await tokens_of(call) == [1, 2, 3]
        trailers = dict(await call.trailing_metadata())
        whose = {"key": "default/a", "namespace": "default", "model": "default/tiny"}
        assert house.gateway.metrics.value("dormouse_usage_requests_total", **whose) == 1
        assert house.gateway.metrics.value("dormouse_usage_tokens_total", **whose, part="completion") >= 3
        assert (trailers["x-ratelimit-limit-requests"], trailers["x-ratelimit-remaining-requests"]) == ("1", "0")
        refusal = await refusal_of(ask(house, metadata=aio.Metadata(*bearer("a-secret"))))
        assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 59 < retry_after_s(refusal) <= 61
        await until(lambda: house.gateway._keys.counting._known["default/a"].ledger.today.use.tokens < ASSUMED_TOKENS)


async def test_many_clients_that_leave_while_they_are_asked_for_leave_nothing_behind():
    counting = Counting()
    operator = Operator(counting)
    await until(lambda: operator.told)
    async with AsyncExitStack() as _:
        asking = [asyncio.create_task(let_in(counting, key(requests_per_minute=9))) for _ in range(5)]
        await until(lambda: len(operator.asked) == 5)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert counting._waiting == {}
    await operator.go()
