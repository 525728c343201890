"""What the operator hears of a gateway, over the control port."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.testing_tickets import book_to_gateways
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_api.v1 import gateway_control_pb2_grpc as rpc
from dormouse_api.v1 import inference_pb2
from dormouse_gateway.activity import ActivityLog
from dormouse_gateway.control import INTERVAL_S, MAX_STREAMS, MOST_EARLY, GatewayControl
from dormouse_gateway.testing.workers import NAMESPACE
from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Unavailable
from dormouse_kube.reflector import ObjectKey
from tests.gateway.kit import ask, refusal_of, tokens_of

TINY = ObjectKey(NAMESPACE, "tiny")


@asynccontextmanager
async def operator(house):
    """Open streams as the operator does."""
    async with aio.insecure_channel(f"127.0.0.1:{house.ports.control}") as channel:
        stub, metadata = rpc.GatewayControlStub(channel), aio.Metadata(*book_to_gateways().proof("127.0.0.1"))
        yield lambda: stub.WatchActivity(pb.WatchActivityRequest(), metadata=metadata, timeout=60)


async def until_told(call, holds):
    """Read updates until one tells of an activity for which this holds; return it."""
    while True:
        for activity in (await call.read()).activities:
            if holds(activity):
                return activity


async def test_the_operator_hears_of_every_deployment_and_of_its_requests(house, workers):
    workers[0].tell_load(running_requests=1, waiting_requests=2, kv_cache_usage=0.5)
    await house.add("tiny", workers[:1])
    await house.until(lambda: house.gateway.router.activity.activity(TINY).awake_workers)
    async with operator(house) as watch:
        call = watch()
        first = await call.read()
        assert first.is_complete
        (tiny,) = first.activities
        assert (tiny.namespace, tiny.name, tiny.in_flight_requests, tiny.held_requests) == ("default", "tiny", 0, 0)
        assert (tiny.awake_workers, tiny.running_requests, tiny.waiting_requests) == (1, 1, 2)
        assert tiny.mean_kv_cache_usage == 0.5
        assert not tiny.HasField("last_request_age_seconds")
        workers[0].is_gated = True
        answer = asyncio.create_task(tokens_of(ask(house)))
        busy = await until_told(call, lambda told: told.in_flight_requests == 1)
        assert busy.last_request_age_seconds <= busy.known_age_seconds
        await workers[0].started.wait()
        workers[0].gate.set()
        await answer
        idle = await until_told(call, lambda told: told.in_flight_requests == 0)
        assert idle.HasField("last_request_age_seconds")


async def test_a_request_that_nobody_could_take_is_activity_and_a_question_about_the_model_is_none(house, workers):
    await house.add("tiny", workers[:1], ready=False, lifecycle={"holdTimeoutSeconds": 0})
    log = house.gateway.router.activity
    await house.stub.GetModel(inference_pb2.GetModelRequest(model="tiny"), timeout=90)
    assert log.activity(TINY).last_request_s is None
    await refusal_of(ask(house))
    assert log.activity(TINY).last_request_s is not None
    assert log.activity(TINY).in_flight == 0


async def test_a_deployment_that_is_gone_is_told(house, kube, workers):
    await house.add("tiny", workers[:1])
    async with operator(house) as watch:
        call = watch()
        await call.read()
        await kube.delete(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")
        while not (update := await call.read()).removed:
            pass
        assert [(gone.namespace, gone.name) for gone in update.removed] == [("default", "tiny")]


async def test_a_gateway_that_does_not_know_all_yet_says_so(make_house, kube, workers):
    kube.fail("list", ENDPOINT_SLICES, Unavailable("not yet"), times=1)
    async with make_house(is_synced=False) as house, operator(house) as watch:
        call = watch()
        assert not (await call.read()).is_complete
        await house.until(lambda: house.gateway.router.is_synced)
        await house.add("tiny", workers[:1])  # told at once; without it, the next sign of life would tell
        while not (await call.read()).is_complete:
            pass


async def test_more_streams_than_anybody_needs_are_refused_with_the_limit(house):
    async with operator(house) as watch:
        calls = [watch() for _ in range(MAX_STREAMS)]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.RpcError) as caught:
            await watch().read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MAX_STREAMS) in caught.value.details()
        calls[0].cancel()
        await house.until(lambda: f"{MAX_STREAMS - 1} streams" in repr(house.gateway._activity))
        assert (await watch().read()).is_complete


async def test_the_streams_end_with_the_gateway_after_its_last_request(house, workers):
    await house.add("tiny", workers[:1])
    workers[0].is_gated = True
    async with operator(house) as watch:
        call, answer = watch(), asyncio.create_task(tokens_of(ask(house)))
        await until_told(call, lambda told: told.in_flight_requests == 1)
        house.stop.set()
        await house.until(lambda: not house.gateway._is_ready)
        workers[0].tell_load(waiting_requests=7)
        await until_told(call, lambda told: told.waiting_requests == 7)
        workers[0].gate.set()
        while await call.read() is not aio.EOF:
            pass
        await answer


# --- in told time ---


class Naps:
    """A sleep that ends when told."""

    def __init__(self):
        self.asked = []
        self.gate = asyncio.Event()

    async def __call__(self, seconds):
        self.asked.append(seconds)
        await self.gate.wait()


def stream(log, *, is_synced=lambda: True, **how):
    control = GatewayControl(log, is_synced=is_synced, **how)
    return control.WatchActivity(pb.WatchActivityRequest(), None)


async def test_changes_within_the_interval_are_told_together():
    log, naps = ActivityLog(), Naps()
    log.add(TINY)
    updates = stream(log, sleep=naps)
    await anext(updates)
    coming = asyncio.ensure_future(anext(updates))
    for _ in range(100):
        with log.request(TINY):
            await asyncio.sleep(0)
    assert not coming.done()
    assert naps.asked == [INTERVAL_S]
    naps.gate.set()
    assert [told.in_flight_requests for told in (await coming).activities] == [0]
    await updates.aclose()


async def test_whoever_waits_for_a_wake_is_told_at_once_but_not_ever_so_often():
    now_s = 100.0
    log, naps = ActivityLog(lambda: now_s), Naps()
    log.add(TINY)
    updates = stream(log, sleep=naps)
    await anext(updates)
    for _ in range(MOST_EARLY):
        coming = asyncio.ensure_future(anext(updates))
        await asyncio.sleep(0)
        log.note_held(TINY, 1, is_wanted=True)
        (told,) = (await coming).activities
        assert (told.held_requests, told.wake_wanted_age_seconds, naps.gate.is_set()) == (1, 0.0, False)
        log.note_held(TINY, 0)
    log.note_held(TINY, 1, is_wanted=True)
    coming = asyncio.ensure_future(anext(updates))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not coming.done(), "callers do not decide how often the operator is told"
    naps.gate.set()
    assert [told.held_requests for told in (await coming).activities] == [1]
    naps.gate.clear()
    log.note_held(TINY, 0)
    now_s += INTERVAL_S  # one interval later one more may be early
    coming = asyncio.ensure_future(anext(updates))
    await asyncio.sleep(0)
    log.note_held(TINY, 1, is_wanted=True)
    assert [told.held_requests for told in (await coming).activities] == [1]
    await updates.aclose()


async def test_who_waited_for_a_wake_while_nobody_listened_is_told_though_it_has_gone():
    now_s = 100.0
    log = ActivityLog(lambda: now_s)
    log.add(TINY)
    log.note_held(TINY, 1, is_wanted=True)
    now_s = 110.0
    log.note_held(TINY, 0)
    now_s = 130.0
    updates = stream(log)
    (told,) = (await anext(updates)).activities
    assert (told.held_requests, told.wake_wanted_age_seconds) == (0, 20.0)
    log.note_held(TINY, 1)
    (told,) = (await anext(updates)).activities
    assert (told.held_requests, told.wake_wanted_age_seconds) == (1, 20.0), "who waits for its turn wants no wake"
    await updates.aclose()


async def test_a_gateway_where_nothing_happens_says_that_it_is_there():
    log, naps = ActivityLog(), Naps()
    naps.gate.set()
    updates = stream(log, sleep=naps, heartbeat_s=INTERVAL_S + 0.01)
    assert (await anext(updates)).is_complete
    beat = await anext(updates)
    assert beat.is_complete
    assert not beat.activities
    await updates.aclose()


async def test_that_it_knows_all_by_now_comes_with_a_sign_of_life_at_the_latest():
    log, naps, is_synced = ActivityLog(), Naps(), asyncio.Event()
    naps.gate.set()
    updates = stream(log, is_synced=is_synced.is_set, sleep=naps, heartbeat_s=INTERVAL_S + 0.01)
    assert not (await anext(updates)).is_complete
    is_synced.set()
    assert (await anext(updates)).is_complete
    await updates.aclose()


async def test_many_deployments_come_in_several_messages_and_only_the_last_completes_them():
    log = ActivityLog()
    for number in range(2500):
        log.add(ObjectKey("default", f"m{number}"))
    updates = stream(log)
    told = [await anext(updates) for _ in range(3)]
    await updates.aclose()
    assert [(len(update.activities), update.is_complete) for update in told] == [
        (1000, False),
        (1000, False),
        (500, True),
    ]
    assert max(update.ByteSize() for update in told) < 1 << 19


async def test_ages_are_those_of_the_moment_at_which_they_are_told():
    now_s = 100.0
    log = ActivityLog(lambda: now_s)
    log.add(TINY)
    with log.request(TINY):
        now_s = 130.0
    now_s = 145.0
    updates = stream(log)
    (told,) = (await anext(updates)).activities
    await updates.aclose()
    assert (told.last_request_age_seconds, told.known_age_seconds) == (15.0, 45.0)
