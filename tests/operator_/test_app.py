"""The operator as one process over fakes: it leads, finds what there is, acts, and hands over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from dormouse_api.mutual_tls import MutualTls
from dormouse_api.testing_tickets import GATEWAY_SEED, OPERATOR_SEED
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, LEASES, PODS, SECRETS
from dormouse_kube.errors import Unavailable
from dormouse_kube.testing import FakeKube
from dormouse_operator.app import App
from dormouse_operator.errors import NotLeading
from dormouse_operator.http import serve_http
from dormouse_operator.lead.election import Leadership
from dormouse_operator.manifests.identity import identity_secret_name
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import Key, Ladder, Rung, WorkerState
from dormouse_operator.seeds import Seeds
from dormouse_operator.settings import parse_settings
from dormouse_operator.testing.feed import FakeWatch
from dormouse_operator.testing.gateways import FakeGateways
from dormouse_operator.testing.nouns import a_pod, a_situation, a_worker
from dormouse_operator.testing.workers import FakeWorkers
from tests.waiting import until

SETTINGS = parse_settings({"DORMOUSE_NAMESPACE": "system", "DORMOUSE_RELEASE": "r", "DORMOUSE_TOKENS_DIR": "/none"})


def deployment(name="tiny"):
    spec = {"model": {"uri": "file:///x"}, "engine": {"device": "cpu"}}
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


def app_over(kube, metrics=None, gateways=None, tls=None, workers=None, **settings):
    free = {"holderIdentity": "", "leaseTransitions": 0}
    kube.put(LEASES, {"metadata": {"namespace": "system", "name": SETTINGS.lease_name}, "spec": free})
    leadership = Leadership(
        kube,
        namespace="system",
        name=SETTINGS.lease_name,
        pod_uid=SETTINGS.pod_uid,
        clock=lambda: datetime(2025, 1, 1, tzinfo=UTC),
    )
    return App(
        kube,
        workers or FakeWorkers(),
        leadership,
        settings=replace(SETTINGS, **settings),
        seeds=Seeds((OPERATOR_SEED,), (GATEWAY_SEED,)),
        metrics=metrics or Metrics(),
        watch=FakeWatch(kube),
        gateways=gateways,
        tls=tls,
    )


async def test_with_mutual_tls_a_leader_issues_certificates_that_pods_mount_and_tells_how_long_they_last():
    kube, metrics, stop, tls = FakeKube(), Metrics(), asyncio.Event(), MutualTls()
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    running = asyncio.create_task(app_over(kube, metrics, tls=tls).run(stop))
    await until(lambda: kube.everything(PODS) and len(kube.everything(SECRETS)) == 3)
    names = {secret["metadata"]["name"] for secret in kube.everything(SECRETS)}
    assert names == {"r-authority", "r-gateway-identity", identity_secret_name("tiny")}
    (pod,) = kube.everything(PODS)
    assert identity_secret_name("tiny") in str(pod["spec"]["volumes"])
    text = metrics.render().decode()
    assert 'dormouse_certificate_expiry_seconds{holder="operator"} 86' in text
    assert 'dormouse_certificate_expiry_seconds{holder="authority"} 3.15' in text
    stop.set()
    await running


async def test_without_it_there_is_no_secret():
    kube, stop = FakeKube(), asyncio.Event()
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    running = asyncio.create_task(app_over(kube).run(stop))
    await until(lambda: kube.everything(PODS))
    stop.set()
    await running
    assert not kube.everything(SECRETS)


async def test_a_leader_finds_what_there_is_acts_and_hands_the_lease_over():
    kube, metrics, stop = FakeKube(), Metrics(), asyncio.Event()
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    app = app_over(kube, metrics)
    running = asyncio.create_task(app.run(stop))
    await until(lambda: kube.everything(PODS))
    text = metrics.render().decode()
    assert "dormouse_operator_epoch 1.0" in text
    assert "dormouse_operator_leader 1.0" in text
    assert 'dormouse_watch_age_seconds{resource="pods"} ' in text
    stop.set()
    await running
    assert kube.peek(LEASES, "system", "r-operator")["spec"]["holderIdentity"] == ""
    assert "dormouse_operator_leader 0.0" in metrics.render().decode()


async def test_a_leader_hears_what_goes_on_at_its_gateways_and_nobody_else_does():
    kube, stop, gateways = FakeKube(), asyncio.Event(), FakeGateways(asyncio.get_running_loop().time, found={"a:1"})
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    app = app_over(kube, gateways=gateways)
    await asyncio.sleep(0)
    assert gateways.listeners == {}
    leading = asyncio.create_task(app.run(stop))
    await until(lambda: gateways.listeners)
    gateways.tell("a:1", Key("team", "tiny"), in_flight=3)
    await until(lambda: app.activities.is_known)
    assert app.activities[Key("team", "tiny")].in_flight == 3
    stop.set()
    await leading
    await until(lambda: not gateways.listeners)


async def test_who_has_to_give_up_a_copy_is_looked_at_and_without_a_limit_nobody_watches():
    kube, stop = FakeKube(), asyncio.Event()
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    assert app_over(kube).host_memory is None
    assert app_over(kube, max_node_memory_percent=80).host_memory is not None
    app = app_over(kube, max_sleeping_host_bytes=1)
    leading = asyncio.create_task(app.run(stop))
    await until(lambda: kube.everything(PODS))
    asleep = a_worker(WorkerState.ASLEEP, sleep_level=1, host_copy_bytes=2)
    on_node = (a_pod(0, node="node"),)
    ladder = Ladder(rung=Rung.LEVEL1, since=datetime(2026, 1, 1, tzinfo=UTC), reason="idle")
    app.host_memory.saw(a_situation(asleep, ladder=ladder, pods=on_node))
    assert repr(app.host_memory) == "HostMemoryBook(1 hold something, 1 have to go deeper)"
    await until(lambda: repr(app.host_memory) == "HostMemoryBook(0 hold something, 0 have to go deeper)")
    stop.set()
    await leading


async def test_a_held_request_brings_back_what_has_no_pod_though_no_intent_was_written():
    kube, stop, gateways = FakeKube(), asyncio.Event(), FakeGateways(asyncio.get_running_loop().time, found={"a:1"})
    rung = {"rung": "Zero", "since": "2026-01-01T00:10:00Z", "idleSince": "2026-01-01T00:00:00Z", "reason": "idle"}
    kube.put(INFERENCE_DEPLOYMENTS, {**deployment(), "status": {"lifecycle": rung}})
    app = app_over(kube, gateways=gateways)
    leading = asyncio.create_task(app.run(stop))
    await until(lambda: gateways.listeners)
    gateways.tell("a:1", Key("team", "tiny"))
    await until(
        lambda: (kube.peek(INFERENCE_DEPLOYMENTS, "team", "tiny") or {}).get("status", {}).get("phase") == "Zero"
    )
    await until(lambda: "0 due, 0 busy" in repr(app.worklist))
    assert kube.everything(PODS) == []
    gateways.tell("a:1", Key("team", "tiny"), in_flight=1, held=1)
    await until(lambda: kube.everything(PODS))
    stop.set()
    await leading


async def test_a_leader_knows_the_deployments_that_it_is_to_scale():
    kube, stop = FakeKube(), asyncio.Event()
    scaled = deployment()
    scaled["spec"]["scaling"] = {"maxReplicas": 2}
    kube.put(INFERENCE_DEPLOYMENTS, scaled)
    app = app_over(kube)
    leading = asyncio.create_task(app.run(stop))
    await until(lambda: repr(app.scaler) == "Scaler(team/tiny=1)")
    stop.set()
    await leading


async def test_a_change_is_acted_on_without_another_list():
    kube, stop = FakeKube(), asyncio.Event()
    app = app_over(kube)
    running = asyncio.create_task(app.run(stop))
    await until(lambda: app.candidate.leads)
    kube.calls.clear()
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    await until(lambda: kube.everything(PODS))
    assert {call.verb for call in kube.calls} <= {"get", "apply", "create", "patch_status"}
    assert [call.plural for call in kube.calls if call.verb == "get"] == ["services"], "is the name free?"
    stop.set()
    await running


async def test_what_is_under_way_goes_before_what_is_new():
    app = app_over(FakeKube())
    under_way, new = Key("team", "a"), Key("team", "b")
    app._acts, app.reconciler._seen = True, {under_way: 1}
    app._mark(new)
    app._mark(under_way)
    assert app.worklist._dirty.take(app.worklist._clock(), limit=2) == [under_way, new]


async def test_nothing_is_done_before_everything_was_listed():
    kube, stop = FakeKube(), asyncio.Event()
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    kube.fail("list", PODS, Unavailable("down"), times=99)
    app = app_over(kube)
    running = asyncio.create_task(app.run(stop))
    await until(lambda: any(call.plural == "pods" for call in kube.calls))
    app.worklist.mark(Key("team", "tiny"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not app.is_ready
    assert kube.mutations() == []
    stop.set()
    await running


async def test_a_lost_lease_ends_the_process_with_its_reason():
    kube, stop = FakeKube(), asyncio.Event()
    app = app_over(kube)
    running = asyncio.create_task(app.run(stop))
    await until(lambda: app.candidate.leads)
    kube.edit(LEASES, "system", "r-operator", lambda lease: lease["spec"].update(holderIdentity="other/1"))
    with pytest.raises(NotLeading):
        await app.candidate.raise_above(5)
    kube.put(INFERENCE_DEPLOYMENTS, deployment())
    with pytest.raises(NotLeading):
        await running
    assert kube.everything(PODS) == [], "nothing is done without the lease"


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


def test_the_command_ends_at_once_on_a_bad_setting(monkeypatch):
    from dormouse_operator.__main__ import main

    monkeypatch.setenv("DORMOUSE_TOKENS_DIR", str(Path("/nonexistent")))
    with pytest.raises(SystemExit, match="operator-seed"):
        main()
