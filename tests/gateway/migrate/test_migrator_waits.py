"""Streams whose last worker died, while another will serve: they wait in line as requests do, and go on."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
import pytest
from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.hold.granting import TRUST_AGAIN_S
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.testing.workers import NAMESPACE, endpoint, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from tests.gateway.kit import ask, refusal_of, tokens_of
from tests.gateway.moving import ALL, ONE, Answer, answer_of, check_whole, endpoints, migrated, narrators
from tests.gateway.pools import pool_of
from tests.gateway.sleepers import TINY, held, is_wanted, metadata_of


@dataclass
class Clock:
    """A clock that stands still."""

    now_s: float

    def __call__(self):
        return self.now_s


@asynccontextmanager
async def cut_off(house, worker, **fields):
    """Have a stream lose the only worker that serves, whose pod stays; yield the call and what the client has."""
    worker.holds_after, worker.dies_after = 2, 3
    call = ask(house, **({"sampling_params": ONE} | fields))
    answer = Answer()
    for _ in range(2):
        answer.take(await call.read())
    worker.tell_load(ready=False)
    await house.until(lambda: not house.gateway.router.pool.is_ready(TINY))
    worker.gate.set()
    worker.holds_after = None
    try:
        yield call, answer
    finally:
        call.cancel()


async def end(call, answer):
    while (message := await call.read()) is not aio.EOF:
        answer.take(message)
    return answer


@pytest.mark.parametrize(("params", "num_choices"), [(ONE, 1), (ALL, 3)])
async def test_a_stream_waits_for_its_workers_new_engine_and_goes_on_there(house, params, num_choices):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        async with cut_off(house, workers[0], sampling_params=params) as (call, answer):
            await house.until(lambda: held(house) == num_choices)
            assert house.gateway.metrics.value("dormouse_held_requests", model="default/tiny") == num_choices
            workers[0].tell_load(ready=True)
            check_whole(await end(call, answer), num_choices)
            told = await metadata_of(call)
    assert all(choice.migrated for choice in answer.choices.values())
    assert told["dormouse-start"] == "warm", "the stream began at once"
    assert float(told["dormouse-hold-seconds"]) > 0
    assert migrated(house, "done") == 1
    assert held(house) == house.outstanding() == house.gateway.migrator.room.used_bytes == 0


async def test_a_stream_waits_for_another_pod_of_its_revision(house, kube):
    async with narrators(2) as workers:
        await house.add("tiny", workers[:1])
        async with cut_off(house, workers[0]) as (call, answer):
            await house.until(lambda: held(house) == 1)
            await kube.delete(PODS, NAMESPACE, "tiny-w0")
            await house.until(lambda: not endpoints(house))
            kube.put(PODS, pod("tiny-w1", "tiny", workers[1].address))
            check_whole(await end(call, answer), 1)
            assert workers[1].resumed


async def test_a_stream_whose_model_fell_asleep_wakes_it(house):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        async with cut_off(house, workers[0]) as (call, answer):
            await house.until(lambda: is_wanted(house))
            workers[0].tell_load(ready=True)
            check_whole(await end(call, answer), 1)


async def test_a_stream_waits_no_longer_than_requests_are_held_and_is_told_so(house):
    async with narrators(1) as workers:
        await house.add("tiny", workers, lifecycle={"holdTimeoutSeconds": 1})
        async with cut_off(house, workers[0]) as (call, _):
            error = await refusal_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "failed after 3 messages" in error.details()
    assert "default/tiny has no ready worker; the request was held for 1 s" in error.details()
    assert migrated(house, "nobody") == 1
    assert held(house) == 0


async def test_a_stream_waits_no_longer_than_its_deadline(make_house):
    async with make_house(default_deadline_s=60.0) as house, narrators(1) as workers:
        await house.add("tiny", workers)
        call = house.stub.Generate(pb.GenerateRequest(model="tiny", text="a", sampling_params=ONE))
        workers[0].holds_after, workers[0].dies_after = 1, 2
        await call.read()
        workers[0].tell_load(ready=False)
        await house.until(lambda: not house.gateway.router.pool.is_ready(TINY))
        house.gateway.holder.clock = Clock(time.monotonic() + 60.0)
        workers[0].gate.set()
        error = await refusal_of(call)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "the request's deadline passed while it waited for a worker of default/tiny" in error.details()
    assert migrated(house, "failed") == 1


@pytest.mark.parametrize("lifecycle", [{"desiredState": "Asleep"}, {"desiredState": "Zero"}, {"holdTimeoutSeconds": 0}])
async def test_a_stream_does_not_wait_where_requests_are_not_held(house, lifecycle):
    async with narrators(1) as workers:
        await house.add("tiny", workers, lifecycle=lifecycle)
        async with cut_off(house, workers[0]) as (call, _):
            error = await refusal_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "no other worker that runs the same can go on" in error.details()


async def test_a_stream_does_not_wait_any_more_once_the_pods_are_of_another_revision(house, kube):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        async with cut_off(house, workers[0]) as (call, _):
            await house.until(lambda: held(house) == 1)
            kube.put(PODS, pod("tiny-new", "tiny", "127.0.0.1:1", revision="r2", ready=False))
            await kube.delete(PODS, NAMESPACE, "tiny-w0")
            error = await refusal_of(call)
    assert error.details().endswith("the workers of default/tiny run another model or revision")


async def test_a_worker_that_lost_a_stream_and_goes_on_serving_has_it_again_and_nobody_waits_behind_it(house):
    """One connection was reset. A request that comes meanwhile is answered at once."""
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        workers[0].holds_after, workers[0].dies_after = 2, 3
        call = ask(house, sampling_params=ONE)
        answer = Answer()
        answer.take(await call.read())
        await house.until(workers[0].started.is_set)
        clock = house.gateway.holder.clock = Clock(time.monotonic())
        workers[0].gate.set()
        await house.until(lambda: held(house) == 1)
        workers[0].holds_after = None
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        assert held(house) == 1
        clock.now_s += TRUST_AGAIN_S
        check_whole(await end(call, answer), 1)


async def test_a_client_that_goes_leaves_the_line(house):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        async with cut_off(house, workers[0], sampling_params=ALL) as (call, _):
            await house.until(lambda: held(house) == 3)
            call.cancel()
            await house.until(lambda: held(house) == 0)
    await house.until(lambda: house.outstanding() == 0)
    assert migrated(house, "cancelled") == 1


async def test_streams_and_new_requests_wait_in_one_line(house):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        async with cut_off(house, workers[0]) as (call, answer):
            await house.until(lambda: held(house) == 1)
            later = ask(house)
            await house.until(lambda: held(house) == 2)
            workers[0].tell_load(ready=True)
            check_whole(await end(call, answer), 1)
            assert await tokens_of(later)


async def test_a_model_that_failed_to_start_again_ends_the_wait_with_its_reason(house):
    ready = {"type": "Ready", "status": "False", "reason": "WorkerCrashed", "message": "exit code 137"}

    def fail(obj):  # only from here on a second is enough
        obj["spec"]["lifecycle"] = {"holdTimeoutSeconds": 1}
        obj["status"] = {"phase": "Failed", "conditions": [ready]}

    async with narrators(1) as workers:
        await house.add("tiny", workers)
        async with cut_off(house, workers[0]) as (call, _):
            await house.until(lambda: held(house) == 1)
            house.kube.edit(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny", fail)
            error = await refusal_of(call)
    assert "WorkerCrashed: exit code 137" in error.details()


def test_the_waits_of_parts_count_once_where_they_overlap():
    whole = HoldTicket(10, 100.0, hold_s=2.0, over_s=5.0)
    parts = [whole.rest(20) for _ in range(3)]
    for part, (begun_s, ended_s) in zip(parts, [(10.0, 14.0), (10.0, 15.0), (20.0, 21.0)], strict=True):
        part.hold_s, part.over_s = ended_s - begun_s, ended_s
        whole.add(part)
    whole.add(whole.rest(20))
    assert (whole.hold_s, whole.over_s) == (8.0, 21.0)
    assert (parts[0].num_bytes, parts[0].deadline_s) == (20, 100.0)


def test_an_heir_may_come_while_nothing_is_there_that_shows_the_contrary():

    gone = endpoint("gone")
    assert pool_of().may_get_heir(gone)
    assert pool_of(endpoint("a"), replace(endpoint("b"), revision="r2")).may_get_heir(gone)
    assert not pool_of(replace(endpoint("b"), revision="r2")).may_get_heir(gone)


async def test_many_streams_of_the_last_worker_all_go_on(house):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        worker = workers[0]
        worker.holds_after = 2
        calls = [asyncio.create_task(answer_of(ask(house, sampling_params=ONE))) for _ in range(50)]
        await house.until(lambda: len(worker.seen) == 50)
        await worker.stop()
        await house.until(lambda: held(house) == 50)
        worker.holds_after = None
        await worker.start()
        house.kube.put(PODS, pod("tiny-w0", "tiny", worker.address))
        for answer in await asyncio.gather(*calls):
            check_whole(answer, 1)
