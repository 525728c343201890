"""Adapters over the life of a deployment: told to every worker, loaded, agreed on, and told in the status."""

from __future__ import annotations

import pytest

from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState
from tests.operator_.kit import passes, serving, uids

SQL = {"name": "sql", "uri": "pvc://loras/sql"}
HR = {"name": "hr", "uri": "file:///loras/hr"}
ENGINE = {"device": "cpu", "enableLora": True, "maxLoras": 4}
OF_SQL = f"{len('/adapters/loras/sql'):064x}"  # what a fake worker finds there
OTHER = "ab" * 32


def told(rig):
    return {each["name"]: each for each in rig.status.get("adapters", ())}


def states(rig):
    return {name: each["state"] for name, each in told(rig).items()}


def sets(rig, index=0):
    return [command for command in rig.worker(index).commands if command.startswith("set_loras")]


async def test_workers_are_told_before_they_serve_and_the_status_says_what_is_loaded(rig):
    await rig.serving(replicas=2, engine=ENGINE, adapters=[SQL, HR])
    assert [rig.worker(i).commands for i in (0, 1)] == [
        ["set_loras hr,sql", "initialize_cache", "set_loras hr,sql"]
    ] * 2
    assert states(rig) == {"hr": "Loaded", "sql": "Loaded"}
    assert told(rig)["sql"] == {
        "name": "sql",
        "uri": "pvc://loras/sql",
        "state": "Loaded",
        "digest": OF_SQL,
        "kind": "LoRA",
        "rank": 8,
        "slotBytes": 1 << 20,
        "loadedReplicas": 2,
        "replicas": 2,
        "since": "2026-01-01T00:00:00Z",
    }


async def test_a_gate_stays_shut_until_its_worker_was_told(rig):
    rig.apply(engine=ENGINE, adapters=[SQL])
    await rig.until_profiled()
    rig.worker().adapters.deaf = True
    rig.apply(adapters=[SQL, HR])
    await passes(rig, 4)
    assert rig.worker().state is WorkerState.READY
    assert serving(rig) == []
    rig.worker().adapters.deaf = False
    await rig.settle()
    assert len(serving(rig)) == 1


async def test_a_worker_without_adapters_is_told_nothing(rig):
    await rig.serving(engine=ENGINE)
    assert sets(rig) == []
    assert "adapters" not in rig.status


async def test_adapters_come_and_go_without_another_pod(rig):
    await rig.serving(replicas=2, engine=ENGINE, adapters=[HR])
    before = uids(rig)
    rig.apply(adapters=[HR, {**HR, "name": "hr-2"}])
    await rig.settle()
    assert states(rig) == {"hr": "Loaded", "hr-2": "Loaded"}
    rig.apply(adapters=[])
    await rig.settle()
    assert "adapters" not in rig.status
    assert all(sets(rig, i)[-1] == "set_loras " for i in (0, 1))
    assert uids(rig) == before


async def test_a_worker_that_does_not_say_what_it_holds_is_asked_again_soon(rig):
    """No change of it tells that it would say now."""
    await rig.serving(engine=ENGINE, adapters=[SQL])
    rig.worker().adapters.silent = True
    rig.apply(adapters=[SQL, HR])
    await rig.settle()
    assert states(rig) == {"hr": "Announcing", "sql": "Announcing"}
    assert await rig.reconcile() == 2.0
    rig.worker().adapters.silent = False
    await rig.settle()
    assert states(rig) == {"hr": "Loaded", "sql": "Loaded"}
    assert await rig.reconcile() is None


async def test_an_adapter_in_another_claim_takes_another_pod(rig):
    await rig.serving(engine=ENGINE, adapters=[SQL])
    before = uids(rig)
    rig.apply(adapters=[SQL, {"name": "x", "uri": "pvc://more/x"}])
    await passes(rig, 12, least=1)
    assert uids(rig).isdisjoint(before)
    (pod,) = rig.kube.everything(PODS)
    mounts = {each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
    assert {"/adapters/loras", "/adapters/more"} <= mounts


async def test_an_adapter_of_a_hub_is_named_to_the_worker_with_the_token_that_is_mounted(rig):
    hub = {"name": "hub", "uri": "hf://org/hub", "tokenSecretRef": {"name": "secret"}}
    await rig.serving(engine=ENGINE, adapters=[SQL, hub])
    assert states(rig) == {"hub": "Loaded", "sql": "Loaded"}
    (wanted,) = (each for each in rig.worker().adapters.wanted if each.name == "hub")
    assert (wanted.path, wanted.token) == ("hf://org/hub", "secret/token")
    (pod,) = rig.kube.everything(PODS)
    mounts = {each["mountPath"]: each["name"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes[mounts["/adapter-tokens/secret"]]["secret"] == {"secretName": "secret", "optional": True}
    before = uids(rig)
    rig.apply(adapters=[SQL, hub, {**hub, "name": "second", "uri": "hf://org/second"}])
    await rig.settle()
    assert states(rig) == {"hub": "Loaded", "second": "Loaded", "sql": "Loaded"}
    assert uids(rig) == before


async def test_how_far_a_fetch_is_stands_in_the_status(rig):
    rig.node.adapter_files = {"hf://org/hub": "10 MiB are fetched"}
    await rig.serving(engine=ENGINE, adapters=[{"name": "hub", "uri": "hf://org/hub"}])
    assert states(rig) == {"hub": "Loading"}
    assert told(rig)["hub"]["message"].startswith("1 of 1 replicas load it; ")
    assert told(rig)["hub"]["message"].endswith(": 10 MiB are fetched")


async def test_what_cannot_be_loaded_is_told_by_its_name_and_the_base_serves(rig):
    rig.apply(engine=ENGINE, adapters=[SQL, HR])
    await rig.until_profiled()
    rig.worker().adapters.files["/loras/hr"] = "use_dora is True"
    await rig.settle()
    assert states(rig) == {"hr": "Failed", "sql": "Loaded"}
    assert told(rig)["hr"]["message"].endswith("-0: use_dora is True")
    assert len(serving(rig)) == 1
    assert rig.condition("Ready")[0] == "True"
    told_of = [event for event in rig.events if event.startswith("Adapter")]
    assert [event.partition(" replicas")[0] for event in told_of] == [
        "AdapterFailed: the adapter hr: 1 of 1",
        "AdapterLoaded: 1 of 1",
    ]


async def test_many_adapters_are_few_events(rig):
    many = [{"name": f"n{number}", "uri": f"file:///loras/{number}"} for number in range(30)]
    await rig.serving(engine={**ENGINE, "maxCpuLoras": 30}, adapters=many)
    told_of = [event for event in rig.events if event.startswith("Adapter")]
    assert len(told_of) == 9
    assert told_of[-1] == "AdaptersChanged: 22 more adapters came or failed"


async def test_one_name_is_one_digest_on_all_workers(rig):
    """What the first loaded counts; files that changed under a URI are refused until the spec names them."""
    await rig.serving(engine=ENGINE, adapters=[SQL])
    rig.node.adapter_files = {"/adapters/loras/sql": OTHER}
    rig.apply(replicas=2)
    await passes(rig, 6)
    assert told(rig)["sql"]["digest"] == OF_SQL
    assert states(rig) == {"sql": "Failed"}
    assert f"the digest is {OTHER}" in told(rig)["sql"]["message"]
    rig.worker(0).adapters.files["/adapters/loras/sql"] = OTHER
    rig.apply(adapters=[{**SQL, "digest": OTHER}])
    await rig.settle()
    assert (told(rig)["sql"]["digest"], states(rig)) == (OTHER, {"sql": "Loaded"})


async def test_another_uri_is_another_adapter(rig):
    await rig.serving(engine=ENGINE, adapters=[SQL])
    rig.apply(adapters=[{**SQL, "uri": "pvc://loras/sql-version-2"}])
    await rig.settle()
    assert told(rig)["sql"]["digest"] == f"{len('/adapters/loras/sql-version-2'):064x}"
    assert states(rig) == {"sql": "Loaded"}


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_a_worker_that_slept_through_a_change_is_told_before_it_serves(rig, level):
    await rig.serving(engine=ENGINE, adapters=[SQL])
    rig.apply(lifecycle={"desiredState": "Asleep", "sleepLevel": level})
    await rig.settle()
    rig.apply(adapters=[SQL, HR])
    await rig.settle()
    assert states(rig) == {"hr": "Waiting", "sql": "Waiting"}
    assert told(rig)["sql"]["digest"] == OF_SQL
    rig.apply(lifecycle={"desiredState": "Active"})
    await passes(rig, 3)
    await rig.settle()
    assert sets(rig)[-2:] == ["set_loras hr,sql", "set_loras hr,sql"]  # the second with the digest of hr
    assert states(rig) == {"hr": "Loaded", "sql": "Loaded"}


async def test_a_container_that_restarted_is_told_anew(rig):
    await rig.serving(engine=ENGINE, adapters=[SQL])
    rig.worker().restart()
    count = len(sets(rig))
    await passes(rig, 3)
    await rig.settle()
    assert sets(rig)[count:] == ["set_loras sql"]
    assert states(rig) == {"sql": "Loaded"}


async def test_nobody_is_told_twice_and_a_restarted_operator_changes_nothing(rig):
    await rig.serving(engine=ENGINE, adapters=[SQL])
    count, before = len(sets(rig)), rig.status
    rig.restart_operator()
    await passes(rig, 2)
    assert (len(sets(rig)), rig.status) == (count, before)


async def test_a_name_is_announced_before_gateways_may_send_requests_for_it(rig):
    """A worker that serves and has not heard of a name would refuse it."""
    await rig.serving(engine=ENGINE, adapters=[SQL])
    rig.worker().adapters.deaf = True
    rig.apply(adapters=[SQL, HR])
    await passes(rig, 2)
    assert states(rig) == {"hr": "Announcing", "sql": "Loaded"}
