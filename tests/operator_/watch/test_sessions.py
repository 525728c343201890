"""kopf as the watcher, over HTTP: whatever breaks between it and the API server, the cache comes to hold the truth."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from dormouse_api.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import GPU_POOLS, INFERENCE_ADAPTERS, INFERENCE_DEPLOYMENTS, PODS, Kind
from dormouse_kube.errors import Gone, NotFound
from dormouse_kube.testing import FakeKube
from dormouse_kube.testing_http import HttpKube, serve
from dormouse_operator.model import Key
from dormouse_operator.watch.cache import SELECTORS, Cache
from dormouse_operator.watch.feed import Feed
from dormouse_operator.watch.kopf_watch import until_deaf, watch
from tests.waiting import until

KEY = Key("team", "tiny")
NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)  # kopf waits until it is discovered


def deployment(name="tiny"):
    return {"metadata": {"namespace": "team", "name": name}, "spec": {"model": {"uri": "file:///x"}}}


def pod(name="tiny-0"):
    labels = {LABEL_DEPLOYMENT: "tiny", LABEL_COMPONENT: COMPONENT_WORKER}
    return {"metadata": {"namespace": "team", "name": name, "labels": labels}, "spec": {}}


@dataclass
class Stage:
    """A server, kopf that watches it, and the cache that results."""

    kube: FakeKube = field(default_factory=FakeKube)
    marked: list[Key] = field(default_factory=list)
    calls: list[tuple[str, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = HttpKube(self.kube, (*SELECTORS, NAMESPACES))
        self.cache = Cache()
        self.feed = Feed(self.kube, self.cache, namespaces=(), mark=self.marked.append)

    def pods(self) -> list[str]:
        snapshot = self.cache.snapshot(KEY)
        return [item["metadata"]["name"] for item in snapshot.pods] if snapshot else []

    async def run(self) -> None:
        await asyncio.gather(
            watch(self.feed, namespaces=(), on_call=lambda *call: self.calls.append(call)), self.feed.run()
        )


@pytest.fixture
async def stage(tmp_path, monkeypatch):
    made = Stage()
    made.kube.put(INFERENCE_DEPLOYMENTS, deployment())
    made.kube.put(PODS, pod())
    async with serve(made.server) as address:
        cluster = {"name": "c", "cluster": {"server": address}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {"token": "t"}}]
        config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"}
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        running = asyncio.create_task(made.run())
        await until(lambda: made.cache.is_complete)
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_is_there_and_what_changes_reaches_the_cache_and_is_counted(stage):
    assert stage.pods() == ["tiny-0"]
    stage.kube.put(PODS, pod("tiny-1"))
    await until(lambda: stage.pods() == ["tiny-0", "tiny-1"])
    stage.kube.finish_deletion(PODS, "team", "tiny-0")
    await until(lambda: stage.pods() == ["tiny-1"])
    assert set(stage.marked) == {KEY}
    assert {("list", "pods", 200), ("watch", "pods", 200)} <= set(stage.calls)
    assert set(stage.feed.ages_s()) == {kind.plural for kind in SELECTORS}


async def test_a_bookmark_shows_that_the_watch_is_alive(stage):
    ages = [stage.feed.ages_s()["pods"]]
    stage.feed._clock = lambda: 10**9
    await stage.server.send_to_watches(
        "pods", {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2000"}}}
    )
    await until(lambda: stage.feed.ages_s()["pods"] == 0.0)
    assert stage.feed.ages_s()["services"] > 10**6 > ages[0]


async def test_a_watch_that_ends_is_continued_and_nothing_is_listed(stage):
    stage.server.requests.clear()
    stage.kube.end_watches()
    await until(lambda: stage.server.requests.count("watch pods") == 1)
    stage.kube.put(PODS, pod("tiny-1"))
    await until(lambda: stage.pods() == ["tiny-0", "tiny-1"])
    assert not [request for request in stage.server.requests if request.startswith("list")]


async def test_what_vanished_while_the_watch_was_too_old_is_noticed(stage):
    """A second list of kopf tells of no deletion that happened before it."""
    stage.server.fault = 503
    stage.kube.end_watches(Gone("too old", status=410))
    await until(lambda: stage.server.num_streams() == 0)
    stage.kube.finish_deletion(PODS, "team", "tiny-0")
    stage.kube.compact()
    stage.server.fault = 0
    await until(lambda: stage.pods() == [])


async def test_an_error_inside_a_stream_leads_to_a_new_list(stage, caplog):
    """With such an error kopf would neither go on nor end."""
    sick = {"type": "ERROR", "object": {"code": 500, "message": "etcd is sick"}}
    await stage.server.send_to_watches("pods", sick)
    await until(lambda: "a watch broke and lists anew: etcd is sick" in caplog.text)
    stage.kube.finish_deletion(PODS, "team", "tiny-0")
    stage.kube.put(PODS, pod("tiny-1"))
    await until(lambda: stage.pods() == ["tiny-1"])


@pytest.mark.parametrize("status", [429, 403, 500])
async def test_a_server_that_refuses_for_a_while_is_waited_for(stage, status):
    stage.server.fault = status
    stage.kube.end_watches()
    await until(lambda: ("watch", "pods", status) in stage.calls)
    stage.kube.put(PODS, pod("tiny-1"))
    stage.server.fault = 0
    await until(lambda: stage.pods() == ["tiny-0", "tiny-1"])


@pytest.mark.parametrize(("age_s", "words"), [(1000.0, "silent"), (0.0, "kopf ended")])
async def test_a_kopf_that_is_silent_for_too_long_or_ends_is_given_up(caplog, age_s, words):
    now = [0.0]
    feed = Feed(FakeKube(), Cache(), namespaces=(), mark=[].append, clock=lambda: now[0])
    feed.hear((PODS, None))
    now[0] = age_s
    ended = asyncio.Event()
    running = asyncio.create_task(ended.wait())
    if not age_s:
        ended.set()
    await until_deaf(feed, running, look_s=0.001, limit_s=0.003)
    assert words in caplog.text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_kopf_begins_anew_when_a_kind_is_defined_that_it_found_undefined(caplog):
    caplog.set_level("INFO")
    kube = FakeKube()
    kube.fail("list", GPU_POOLS, NotFound("the server could not find the requested resource"), times=3)
    feed = Feed(kube, Cache(), namespaces=(), mark=[].append)
    feed.hear((INFERENCE_ADAPTERS, None))  # is watched
    listing, kopf_runs = asyncio.create_task(feed.run()), asyncio.create_task(asyncio.Event().wait())
    await until_deaf(feed, kopf_runs, look_s=0.001, begin_s=0.002)
    assert "a kind was defined after kopf had begun" in caplog.text
    assert len([call for call in kube.calls if call.plural == "gpupools"]) == 4
    for task in (listing, kopf_runs):
        task.cancel()
    await asyncio.gather(listing, kopf_runs, return_exceptions=True)
