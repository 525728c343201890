"""After a gap everything is listed once more, as long as it takes; before the first list nothing counts as known."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import GPU_POOLS, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import NotFound, Unavailable
from dormouse_kube.testing import FakeKube
from dormouse_operator.model import Key, PoolKey
from dormouse_operator.watch.cache import SELECTORS, Cache
from dormouse_operator.watch.feed import OPTIONAL, Feed

KEY = Key("team", "tiny")


def pod(name="tiny-0", namespace="team"):
    labels = {LABEL_DEPLOYMENT: "tiny", LABEL_COMPONENT: COMPONENT_WORKER}
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels}, "spec": {}}


class Stage:
    """A feed over a fake server, and what it did."""

    def __init__(self, *namespaces) -> None:
        self.kube, self.cache = FakeKube(), Cache()
        self.kube.put(INFERENCE_DEPLOYMENTS, {"metadata": {"namespace": "team", "name": "tiny"}, "spec": {}})
        self.marked: list[Key] = []
        self.pauses: list[float] = []
        self.now = 0.0
        self.feed = Feed(
            self.kube,
            self.cache,
            namespaces=namespaces,
            mark=self.marked.append,
            clock=lambda: self.now,
            sleep=self.pause,
        )

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def turn(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    def start(self, namespace=None, without=None) -> None:
        for kind in SELECTORS:
            if kind is not without:
                self.feed.start((kind, namespace))

    def pods(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.cache.snapshot(KEY).pods]


@pytest.fixture
async def stage():
    made = Stage()
    running = asyncio.create_task(made.feed.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_everything_is_known_once_every_kind_was_listed_after_its_watch_began(stage):
    stage.feed.start((PODS, None))
    await stage.turn()
    assert not stage.cache.is_complete
    assert f"{len(SELECTORS) - 1 - len(OPTIONAL)} not listed" in repr(stage.feed), "pods, and what may be undefined"
    stage.start()
    await stage.turn()
    assert stage.cache.is_complete
    assert stage.feed.filled.is_set()
    assert stage.marked == [KEY]


async def test_every_namespace_has_to_be_listed():
    stage = Stage("team", "other")
    running = asyncio.create_task(stage.feed.run())
    stage.start("team")
    await stage.turn()
    assert not stage.cache.is_complete
    stage.start("other")
    await stage.turn()
    assert stage.cache.is_complete
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_vanished_in_a_gap_is_forgotten_and_marked_and_what_is_there_stays(stage):
    for name in ("tiny-0", "tiny-1", "tiny-2"):
        stage.kube.put(PODS, pod(name))
    stage.start()
    await stage.turn()
    stage.marked.clear()
    stage.kube.finish_deletion(PODS, "team", "tiny-1")
    stage.feed.start((PODS, None))
    await stage.turn()
    assert stage.pods() == ["tiny-0", "tiny-2"]
    assert stage.marked == [KEY]


async def test_a_list_that_fails_is_tried_until_it_succeeds_as_late_as_the_server_asks(stage):
    stage.kube.fail("list", PODS, Unavailable("busy", retry_after_s=7.0))
    stage.kube.fail("list", PODS, Unavailable("down"), times=9)
    stage.start()
    for _ in range(5):
        await stage.turn()
    assert stage.cache.is_complete
    assert len(stage.pauses) == 10
    assert stage.pauses[0] == 7.0
    assert max(stage.pauses[1:]) <= 10.0


async def test_the_age_of_a_watch_is_that_of_its_most_silent_namespace():
    stage = Stage("a", "b")
    stage.feed.start((PODS, "a"))
    stage.now = 5.0
    stage.feed.start((PODS, "b"))
    stage.now = 6.0
    assert stage.feed.ages_s() == {"pods": 6.0}
    stage.feed.hear((PODS, "a"))
    assert stage.feed.ages_s() == {"pods": 1.0}


@pytest.fixture
async def undefined():
    """A feed where GpuPool is not defined, with everything else watched."""
    made = Stage("team", "other")
    made.kube.fail("list", GPU_POOLS, NotFound("the server could not find the requested resource"), times=4)
    running = asyncio.create_task(made.feed.run())
    for namespace in ("team", "other"):
        made.start(namespace, without=GPU_POOLS)
    await made.turn()
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_the_definition_of_pools_everything_else_is_known_and_the_log_says_what_to_apply(
    undefined, caplog
):
    assert undefined.cache.is_complete
    assert undefined.pauses == [], "it is no failure"
    undefined.feed.look_for_definitions()
    await undefined.turn()
    said = [record.message for record in caplog.get_records("setup") if record.levelname == "WARNING"]
    assert said == [
        "GpuPool is not defined in this cluster: GPU pools are switched off until crds/gpupools.yaml is applied"
    ]
    assert caplog.records == [], "it is said once"


async def test_a_definition_that_comes_later_is_found_and_has_to_be_watched(undefined):
    undefined.feed.look_for_definitions()
    await undefined.turn()
    assert not undefined.feed.has_unwatched, "not defined yet"
    undefined.kube.put(GPU_POOLS, {"metadata": {"namespace": "team", "name": "gpus"}, "spec": {}})
    undefined.feed.look_for_definitions()
    await undefined.turn()
    assert undefined.feed.has_unwatched
    assert undefined.marked[-1] == PoolKey("team", "gpus")
    for namespace in ("team", "other"):
        undefined.feed.start((GPU_POOLS, namespace))
    assert not undefined.feed.has_unwatched


async def test_a_kind_that_is_needed_has_to_be_defined(stage):
    stage.kube.fail("list", INFERENCE_DEPLOYMENTS, NotFound("the server could not find the requested resource"))
    stage.start()
    await stage.turn()
    assert len(stage.pauses) == 1
