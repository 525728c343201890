"""Workers die in the middle of what they say; a client sees neither a gap nor a repeat, or one status. Real sockets."""

import asyncio

import grpc
import pytest
from grpc import aio

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.testing.moves import NUM_PROMPT_LOGPROBS, STORIES
from dormouse_gateway.testing.workers import NAMESPACE
from dormouse_kube.api import PODS
from dormouse_kube.reflector import ObjectKey
from tests.gateway.kit import ask
from tests.gateway.moving import (
    ALL,
    DEATHS,
    NUM_MESSAGES,
    ONE,
    Answer,
    answer_of,
    check_whole,
    migrated,
    narrators,
)

TINY = ObjectKey(NAMESPACE, "tiny")


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("num_choices", [1, len(STORIES)])
async def test_a_stream_goes_on_elsewhere_after_any_number_of_messages(house, death, num_choices):
    """Three workers; two of them give up after the same number of messages, once each."""
    params = pb.SamplingParams(n=num_choices, seed=5)
    num_messages = NUM_PROMPT_LOGPROBS + sum(len(story) for story in STORIES[:num_choices])
    async with narrators(3, death=death) as workers:
        await house.add("tiny", workers)
        for dies_after in range(num_messages + (death != "abort")):
            for worker in workers:
                worker.dies_after, worker.lives = dies_after, 1
            workers[2].lives = 0
            answer = await answer_of(ask(house, sampling_params=params))
            check_whole(answer, num_choices)
    assert house.outstanding() == 0
    assert house.gateway.migrator.room.used_bytes == 0


async def test_only_choices_that_moved_say_so_and_those_that_had_ended_are_not_asked_again(house):
    async with narrators(2) as workers:
        workers[0].dies_after = workers[1].dies_after = NUM_MESSAGES - 3  # the shortest story has ended by then
        await house.add("tiny", workers)
        answer = await answer_of(ask(house, sampling_params=ALL))
        resumed = [request.resume.choice_index for worker in workers for request in worker.resumed]
    check_whole(answer, len(STORIES))
    assert {index for index, told in answer.choices.items() if told.migrated} == set(resumed)
    assert 1 not in resumed
    assert resumed
    assert migrated(house, "done") == 1


async def test_a_stream_that_nothing_happens_to_does_not_say_that_it_moved(house):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        answer = await answer_of(ask(house, sampling_params=ALL))
    check_whole(answer, len(STORIES))
    assert not any(told.migrated for told in answer.choices.values())
    assert migrated(house, "done") == 0


async def test_a_stream_may_come_back_to_a_worker_that_it_had_left(house):
    async with narrators(2, dies_after=4, lives=99) as workers:
        await house.add("tiny", workers)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        assert sorted(len(worker.seen) for worker in workers if worker.seen) == [1, 2]


async def test_a_full_worker_is_passed_over_for_one_with_room(house):
    async with narrators(3) as workers:
        workers[0].dies_after = 4
        await house.add("tiny", workers[:1])
        workers[0].holds_after = 1
        call = ask(house, sampling_params=ONE)
        answer = Answer()
        answer.take(await call.read())
        workers[1].fail_before = CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue holds 64 requests", 2.5)
        await house.add("tiny", workers)
        workers[0].gate.set()
        while (message := await call.read()) is not aio.EOF:
            answer.take(message)
        assert len(workers[2].resumed) == 1
    check_whole(answer, 1)


async def test_many_streams_of_a_worker_that_dies_all_go_on(house):
    async with narrators(2) as workers:
        await house.add("tiny", workers)
        for worker in workers:
            worker.holds_after = 2
        calls = [asyncio.create_task(answer_of(ask(house, sampling_params=ALL))) for _ in range(50)]
        await house.until(lambda: sum(len(worker.seen) for worker in workers) == 50)
        workers[1].holds_after = None
        workers[1].gate.set()
        await workers[0].stop()
        for answer in await asyncio.gather(*calls):
            check_whole(answer, len(STORIES))


async def test_a_long_stream_leaves_a_worker_that_goes_away_when_another_is_ready(make_house, kube):
    async with make_house(migrate_after_s=0.0) as house, narrators(2) as workers:
        await house.add("tiny", workers[:1])
        workers[0].holds_after = 4
        call = ask(house, sampling_params=ALL)
        answer = Answer()
        for _ in range(4):
            answer.take(await call.read())
        await house.add("tiny", workers)
        await kube.delete(PODS, NAMESPACE, "tiny-w0")
        while (message := await call.read()) is not aio.EOF:
            answer.take(message)
        assert workers[1].resumed
    check_whole(answer, len(STORIES))


async def test_a_long_stream_leaves_a_worker_that_says_that_it_drains(make_house):
    async with make_house(migrate_after_s=0.0) as house, narrators(2) as workers:
        await house.add("tiny", workers[:1])
        workers[0].holds_after = 4
        call = ask(house, sampling_params=ONE)
        answer = Answer()
        for _ in range(4):
            answer.take(await call.read())
        await house.add("tiny", workers)
        workers[0].tell_load(draining=True)
        while (message := await call.read()) is not aio.EOF:
            answer.take(message)
    check_whole(answer, 1)


async def test_a_long_stream_stays_on_a_worker_that_drains_where_the_other_does_not_go_on_with_streams(make_house):
    async with make_house(migrate_after_s=0.0) as house, narrators(2) as workers:
        for worker in workers:
            worker.capabilities, worker.refuses = ("standby",), True
        await house.add("tiny", workers[:1])
        workers[0].holds_after = 4
        call = ask(house, sampling_params=ONE)
        answer = Answer()
        for _ in range(4):
            answer.take(await call.read())
        await house.add("tiny", workers)
        await house.until(lambda: not any(each.resumes for each in house.gateway.router.pool.endpoints_of(TINY)))
        workers[0].tell_load(draining=True)
        await house.until(lambda: house.gateway.evictions._timers)
        evicting = house.gateway.evictions._timers.copy()
        await house.until(lambda: house.gateway.evictions._timers != evicting)  # it was to leave, and did not
        workers[0].gate.set()
        while (message := await call.read()) is not aio.EOF:
            answer.take(message)
    check_whole(answer, 1)
    assert not workers[1].resumed


async def test_a_long_stream_stays_on_a_worker_that_goes_away_where_there_is_no_other(make_house, kube):
    async with make_house(migrate_after_s=0.0) as house, narrators(1) as workers:
        await house.add("tiny", workers)
        workers[0].holds_after = 4
        call = ask(house, sampling_params=ONE)
        await call.read()
        await kube.delete(PODS, NAMESPACE, "tiny-w0")
        await house.until(lambda: "retired" in repr(house.gateway.router.pool))
        workers[0].gate.set()
        while (message := await call.read()) is not aio.EOF:
            last = message
    assert last.finish_reason == pb.FINISH_REASON_LENGTH
    assert not last.migrated
