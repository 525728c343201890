"""One wake intent, however many want it: when it is written, renewed and given up."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from dormouse_api.names import ANNOTATION_WAKE
from dormouse_gateway.model import parse_deployment
from dormouse_gateway.testing import NAMESPACE, deployment, infd
from dormouse_gateway.wakes import RENEW, WakeWriter, intent_time, is_due
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Unavailable
from dormouse_kube.reflector import ObjectKey
from tests.waiting import until

TINY = ObjectKey(NAMESPACE, "tiny")
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
AGO = timedelta(seconds=10)


class World:
    """A resource, a clock that is told, and sleeps that end when the clock says so."""

    def __init__(self, kube):
        self.kube = kube
        self.now = NOW
        self.sleeps = []
        self.kube.put(INFERENCE_DEPLOYMENTS, infd("tiny"))
        self.writer = WakeWriter(kube, self.find, now=lambda: self.now, sleep=self.sleep)

    def find(self, key):
        found = self.kube.peek(INFERENCE_DEPLOYMENTS, key.namespace, key.name)
        return found and parse_deployment(found)

    async def sleep(self, seconds):
        end = self.now + timedelta(seconds=seconds)
        done = asyncio.Event()
        self.sleeps.append((end, done))
        await done.wait()

    def pass_time(self, seconds):
        self.now += timedelta(seconds=seconds)
        for end, done in self.sleeps:
            if end <= self.now:
                done.set()

    def writes(self):
        return [call for call in self.kube.calls if call.verb == "apply"]

    def annotation(self):
        found = self.kube.peek(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")
        return (found["metadata"].get("annotations") or {}).get(ANNOTATION_WAKE)

    async def settled(self):
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def world(kube):
    async with closing(World(kube)) as made:
        yield made


@asynccontextmanager
async def closing(made):
    try:
        yield made
    finally:
        await made.writer.aclose()


@pytest.mark.parametrize(
    ("asked", "slept", "due"),
    [
        (None, None, True),
        (None, NOW - AGO, True),
        (NOW - AGO, None, False),
        (NOW - AGO, NOW - 2 * AGO, False),
        (NOW - 2 * AGO, NOW - AGO, True),
        (NOW - AGO, NOW - AGO, True),
        (NOW - RENEW, None, True),
        (NOW + AGO, None, False),
    ],
)
def test_an_intent_is_due_when_there_is_none_newer_than_the_last_sleep_or_than_a_minute(asked, slept, due):
    assert is_due(deployment(wake_requested_at=asked, slept_at=slept), NOW) is due


def test_an_intent_is_newer_than_the_last_sleep_though_our_clock_is_behind():
    assert intent_time(deployment(slept_at=NOW + AGO), NOW) > NOW + AGO
    assert intent_time(deployment(slept_at=NOW - AGO), NOW) == NOW
    assert intent_time(deployment(), NOW) == NOW


async def test_however_often_it_is_wanted_it_is_written_once_and_only_the_annotation(world):
    spec = world.kube.peek(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")["spec"]
    for _ in range(1000):
        world.writer.want(TINY)
    await world.settled()
    world.writer.want(TINY)
    await world.settled()
    assert len(world.writes()) == 1
    assert world.annotation() == "2026-01-01T12:00:00Z"
    assert world.kube.peek(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")["spec"] == spec
    assert repr(world.writer) == "WakeWriter(default/tiny)"


async def test_what_another_gateway_wrote_is_not_written_again(world):
    other = WakeWriter(world.kube, world.find, now=lambda: world.now, sleep=world.sleep)
    world.writer.want(TINY)
    await world.settled()
    other.want(TINY)
    await world.settled()
    assert len(world.writes()) == 1
    await other.aclose()


async def test_it_is_renewed_each_minute_while_it_is_wanted(world):
    world.writer.want(TINY)
    await world.settled()
    world.pass_time(59)
    await world.settled()
    assert len(world.writes()) == 1
    world.pass_time(1)
    await world.settled()
    assert (len(world.writes()), world.annotation()) == (2, "2026-01-01T12:01:00Z")
    world.writer.unwant(TINY, is_over=True)
    await world.settled()
    world.pass_time(600)
    await world.settled()
    assert (len(world.writes()), repr(world.writer)) == (2, "WakeWriter()")


async def test_a_sleep_that_comes_after_it_has_it_written_again(world):
    world.writer.want(TINY)
    await world.settled()
    asleep = {"type": "Asleep", "status": "True", "lastTransitionTime": "2026-01-01T12:00:03Z", "message": ""}
    world.kube.edit(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny", lambda obj: obj.update(status={"conditions": [asleep]}))
    world.pass_time(4)
    world.writer.want(TINY)
    await world.settled()
    assert (len(world.writes()), world.annotation()) == (2, "2026-01-01T12:00:04Z")


async def test_while_the_api_server_is_away_it_is_tried_again_though_everyone_has_gone(world):
    world.kube.fail("apply", INFERENCE_DEPLOYMENTS, Unavailable("connection refused"), times=2)
    world.writer.want(TINY)
    await world.settled()
    world.writer.unwant(TINY, is_over=False)
    assert world.annotation() is None
    for _ in range(3):
        world.pass_time(5)
        await world.settled()
    assert world.annotation() == "2026-01-01T12:00:10Z"
    assert repr(world.writer) == "WakeWriter()"


@pytest.mark.parametrize(("is_over", "seconds"), [(True, 5), (False, 60)])
async def test_it_is_given_up_when_it_is_over_or_nobody_has_wanted_it_for_a_minute(world, is_over, seconds):
    world.kube.fail("apply", INFERENCE_DEPLOYMENTS, Unavailable("connection refused"), times=1)
    world.writer.want(TINY)
    await world.settled()
    world.writer.unwant(TINY, is_over=is_over)
    world.pass_time(seconds)
    await world.settled()
    assert (world.annotation(), repr(world.writer)) == (None, "WakeWriter()")


async def test_a_deployment_that_is_gone_is_not_made_anew(world):
    stale = world.find(TINY)
    await world.kube.delete(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")
    writer = WakeWriter(world.kube, lambda _: stale, now=lambda: world.now, sleep=world.sleep)
    writer.want(TINY)
    await until(lambda: repr(writer) == "WakeWriter()")
    assert world.kube.everything(INFERENCE_DEPLOYMENTS) == []
    writer.unwant(TINY, is_over=False)
