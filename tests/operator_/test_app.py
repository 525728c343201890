"""The operator as one process over fakes: it leads, finds what there is, acts, and hands over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from dormouse_api.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, LEASES, PODS
from dormouse_kube.errors import Unavailable
from dormouse_kube.testing import FakeKube
from dormouse_operator.app import App
from dormouse_operator.errors import NotLeading
from dormouse_operator.http import serve_http
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import Key
from dormouse_operator.resync import find_unseen
from dormouse_operator.settings import Tokens, parse_settings
from dormouse_operator.testing import FakeWorkers
from dormouse_operator.watch import build_registry, build_settings

SETTINGS = parse_settings({"DORMOUSE_NAMESPACE": "system", "DORMOUSE_RELEASE": "r", "DORMOUSE_TOKENS_DIR": "/none"})


def deployment(name="tiny"):
    spec = {"model": {"uri": "file:///x"}, "engine": {"device": "cpu"}}
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


async def no_watch(mark, *, namespaces, stop):
    del mark, namespaces
    await stop.wait()


def app_over(kube, metrics=None):
    return App(
        kube,
        FakeWorkers(),
        settings=SETTINGS,
        tokens=Tokens("t", "aa", "bb"),
        metrics=metrics or Metrics(),
        watch=no_watch,
    )


async def until(holds):
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0)


async def test_a_leader_finds_what_there_is_acts_and_hands_the_lease_over():
    kube, metrics, stop = FakeKube(), Metrics(), asyncio.Event()
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    app = app_over(kube, metrics)
    leading = asyncio.create_task(app.lead(stop))
    await until(lambda: kube.everything(PODS))
    assert b"dormouse_operator_epoch 1.0" in metrics.render()
    stop.set()
    await leading
    assert kube.peek(LEASES, "system", "r-operator")["spec"]["holderIdentity"] == ""


async def test_a_list_that_fails_comes_again(caplog):
    kube, stop = FakeKube(), asyncio.Event()
    kube.fail("list", INFERENCE_DEPLOYMENTS, Unavailable("down"))
    leading = asyncio.create_task(app_over(kube).lead(stop))
    await until(lambda: "resync failed" in caplog.text)
    stop.set()
    await leading


async def test_a_lost_lease_ends_the_process_with_its_reason():
    kube, stop = FakeKube(), asyncio.Event()
    app = app_over(kube)
    leading = asyncio.create_task(app.lead(stop))
    await until(lambda: kube.peek(LEASES, "system", "r-operator"))
    kube.edit(LEASES, "system", "r-operator", lambda lease: lease["spec"].update(holderIdentity="other/1"))
    await until(lambda: app.leadership.epoch)
    with pytest.raises(NotLeading):
        await app.leadership.raise_above(5)
    app.worklist.mark(Key("team", "tiny"))
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    with pytest.raises(NotLeading):
        await leading
    assert kube.everything(PODS) == [], "nothing is done without the lease"


async def test_the_resync_finds_what_is_new_changed_or_gone_and_nothing_else(rig):
    await rig.serving()
    seen = rig.reconciler.seen
    assert await find_unseen(rig.kube, (), seen) == []
    assert await find_unseen(rig.kube, ("team",), seen) == []
    rig.kube.put(INFERENCE_DEPLOYMENTS, deployment("new"))
    assert await find_unseen(rig.kube, (), seen) == [Key("team", "new")]
    rig.kube.edit(PODS, "team", rig.pods[0], lambda pod: pod["status"].update(message="x"))
    assert set(await find_unseen(rig.kube, (), seen)) == {Key("team", "new"), rig.key}
    assert await find_unseen(rig.kube, ("elsewhere",), seen) == [rig.key]


async def test_pods_that_outlive_their_object_are_not_a_reason_to_look(rig):
    labels = {LABEL_DEPLOYMENT: "gone", LABEL_COMPONENT: COMPONENT_WORKER}
    rig.kube.put(PODS, {"metadata": {"namespace": "team", "name": "p", "labels": labels}, "spec": {}})
    assert await find_unseen(rig.kube, (), {}) == []


async def test_the_http_door_shows_metrics_and_health():
    ready = False
    async with (
        serve_http(0, render_metrics=lambda: b"some 1\n", is_ready=lambda: ready, host="127.0.0.1") as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def get(path):
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await get("/metrics") == (200, "some 1\n")
        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (503, "starting\n")
        ready = True
        assert await get("/readyz") == (200, "ok\n")


def test_kopf_waits_out_outages_posts_nothing_and_watches_only_our_children():
    settings = build_settings()
    backoffs = iter(settings.networking.error_backoffs)
    pauses = [next(backoffs) for _ in range(1000)]
    assert max(pauses) <= 10.0
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
    assert LABEL_DEPLOYMENT in str(settings.watching.label_selectors)


def test_kopf_has_handlers_of_events_only_so_it_writes_neither_annotations_nor_finalizers():
    registry = build_registry([].append)
    assert registry._changing.get_all_handlers() == []
    assert registry._spawning.get_all_handlers() == []
    assert registry._indexing.get_all_handlers() == []
    assert len(registry._watching.get_all_handlers()) == 4


async def test_events_mark_the_deployment_that_they_are_about():
    marked = []
    registry = build_registry(marked.append)
    for handler in registry._watching.get_all_handlers():
        await handler.fn(namespace="team", name="tiny", labels={LABEL_DEPLOYMENT: "tiny"})
    assert marked == [Key("team", "tiny")] * 4


async def test_metrics_show_a_deployment_until_it_is_gone(rig):
    await rig.serving(replicas=2)
    text = rig.metrics.render().decode()
    assert 'dormouse_replicas{deployment="tiny",namespace="team",state="active"} 2.0' in text
    assert 'dormouse_kv_blocks_agreed{deployment="tiny",namespace="team"} 2000.0' in text
    assert 'dormouse_actuation_seconds_count{path="cold"} 1.0' in text
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    await rig.reconcile()
    assert "tiny" not in rig.metrics.render().decode()


async def test_metrics_count_sleeps_and_wakes(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.settle()
    rig.metrics.count_call("get", "pods", 200)
    rig.metrics.count_error("Unavailable")
    text = rig.metrics.render().decode()
    assert "dormouse_sleep_seconds_count 1.0" in text
    assert 'dormouse_actuation_seconds_count{path="level1"} 1.0' in text
    assert 'dormouse_kube_requests_total{code="200",resource="pods",verb="get"} 1.0' in text
    assert 'dormouse_reconcile_errors_total{kind="Unavailable"} 1.0' in text


def test_the_command_ends_at_once_on_a_bad_setting(monkeypatch):
    from dormouse_operator.__main__ import main

    monkeypatch.setenv("DORMOUSE_TOKENS_DIR", str(Path("/nonexistent")))
    with pytest.raises(SystemExit, match="operator-token"):
        main()
