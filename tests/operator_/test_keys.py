"""The pass over all InferenceKeys, over Kubernetes in memory; and the schema of InferenceKey."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from dormouse_api.quotas import DayUse, Use
from dormouse_kube.api import INFERENCE_KEYS
from dormouse_kube.errors import Conflict, NotFound, Unavailable
from dormouse_kube.testing import FakeKube
from dormouse_operator.act.writes import Writer
from dormouse_operator.decide.key_statuses import judge
from dormouse_operator.key_reconcile import KeyReconciler
from dormouse_operator.parse.inference_keys import parse_recorded_key
from dormouse_operator.watch.cache import Cache
from tests.operator_.crds import definition, loose, nodes
from tests.waiting import until

VERSION = definition("inferencekeys")["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
START = datetime(2027, 1, 1, tzinfo=UTC)


class Leads:
    """The right to act."""

    epoch = 1

    def check(self):
        """May act."""


def put(kube, name, **spec):
    kube.put(INFERENCE_KEYS, {"metadata": {"namespace": "team", "name": name}, "spec": {"sha256": "a" * 64, **spec}})


def state(kube, name):
    return (kube.peek(INFERENCE_KEYS, "team", name).get("status") or {}).get("state")


@asynccontextmanager
async def running(kube, clock=lambda: START, days=lambda: ()):
    keys = KeyReconciler(kube, Writer(kube, Cache(), Leads()), days, namespaces=(), clock=clock)
    tasks = [asyncio.create_task(each) for each in (keys.follow(), keys.run())]
    try:
        yield keys
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_each_key_gets_its_status_when_it_comes_and_when_another_goes():
    kube = FakeKube()
    put(kube, "a")
    async with running(kube) as keys:
        await until(lambda: state(kube, "a") == "Valid")
        put(kube, "b")
        await until(lambda: state(kube, "b") == "Refused")
        await kube.delete(INFERENCE_KEYS, "team", "a")
        await until(lambda: state(kube, "b") == "Valid")
        assert repr(keys) == "KeyReconciler(1 keys)"


@pytest.mark.parametrize("error", [Conflict("changed", status=409), Unavailable("away", status=503), NotFound("gone")])
async def test_a_write_that_fails_is_tried_again_and_nothing_is_written_twice(error):
    kube, clock = FakeKube(), lambda: START
    put(kube, "a")
    async with running(kube, clock) as keys:
        await until(lambda: state(kube, "a") == "Valid")
        put(kube, "b", sha256="b" * 64)
        await until(lambda: state(kube, "b") == "Valid")
        kube.fail("patch_status", INFERENCE_KEYS, error)
        put(kube, "c", sha256="c" * 64, expires="2026-01-01T00:00:00Z")
        await until(lambda: len(kube._failures) == 0 or kube._failures[0].times == 0)
        assert await keys.reconcile() >= 0
        await until(lambda: state(kube, "c") == "Expired")


async def test_the_next_look_is_at_the_next_expiry():
    kube, now = FakeKube(), [START]
    put(kube, "a", expires="2027-01-01T00:00:05Z")
    async with running(kube, lambda: now[0]) as keys:
        await until(lambda: state(kube, "a") == "Valid")
        await until(lambda: keys._reflector.get("team", "a").get("status"))
        assert await keys.reconcile() == 5.0
        now[0] += timedelta(seconds=5)
        await keys.reconcile()
        await until(lambda: state(kube, "a") == "Expired")


async def test_a_days_use_is_recorded_once_a_minute_and_read_by_the_next_operator():
    kube, now = FakeKube(), [START]
    used = {"team/a": DayUse(20_819, Use(5, 60))}
    put(kube, "a", tokensPerDay=100)
    async with running(kube, lambda: now[0], used.items) as keys:
        await until(lambda: keys.day_of("team/a") == used["team/a"])
        used["team/a"] = DayUse(20_819, Use(6, 70))
        await keys.reconcile()
        assert kube.peek(INFERENCE_KEYS, "team", "a")["status"]["usage"]["requests"] == 5
        now[0] += timedelta(seconds=60)
        await keys.reconcile()
        await until(lambda: keys.day_of("team/a") == used["team/a"])
        assert (keys.day_of("team/b"), keys.day_of("of-a-file")) == (None, None)


def test_every_field_is_described_and_bounded_and_no_unknown_one_is_kept():
    assert [path for path, node in nodes(SCHEMA) if not node.get("description") and path != ".metadata"] == []
    assert [path for path, node in nodes(SCHEMA) if "x-kubernetes-preserve-unknown-fields" in node] == []
    assert loose(SCHEMA["properties"]["spec"]) == []


def test_the_schema_knows_what_the_operator_writes_and_no_more():
    metadata = {"namespace": "team", "name": "a"}
    spec, used = {"sha256": "a" * 64, "tokensPerDay": 9}, {"team/a": DayUse(20_819, Use(1, 1))}
    (found,) = judge([parse_recorded_key({"metadata": metadata, "spec": spec})], START, used)
    known = SCHEMA["properties"]["status"]["properties"]
    assert found.status.keys() == known.keys()
    assert found.status["usage"].keys() == known["usage"]["properties"].keys()
    assert found.status["conditions"][0].keys() == known["conditions"]["items"]["properties"].keys()
