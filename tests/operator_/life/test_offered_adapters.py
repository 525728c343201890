"""InferenceAdapters over the life of their base: merged into its set, told, refused, and gone without a trace."""

from __future__ import annotations

import pytest

from dormouse_kube.api import EVENTS, INFERENCE_ADAPTERS, INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Unavailable
from dormouse_operator.model import AdaptersKey
from tests.operator_.kit import passes, serving, uids

ENGINE = {"device": "cpu", "enableLora": True, "maxLoras": 2, "maxCpuLoras": 4}
SQL = {"name": "sql", "uri": "file:///loras/sql"}
OF_HR = f"{len('/loras/hr'):064x}"  # what a fake worker finds there


def states(rig):
    return {each["name"]: each["state"] for each in rig.status.get("adapters", ())}


def condition(rig, name, type_):
    found = next(item for item in rig.offered(name)["conditions"] if item["type"] == type_)
    return found["status"], found["reason"], found["message"]


def events_of(rig, name):
    found = [event for event in rig.kube.everything(EVENTS) if event["involvedObject"]["name"] == name]
    assert {event["involvedObject"]["kind"] for event in found} <= {"InferenceAdapter"}
    return [event["reason"] for event in found]


async def test_what_a_team_offers_is_served_beside_the_base_s_own_without_another_pod(rig):
    await rig.serving(replicas=2, engine=ENGINE, adapters=[SQL])
    before = uids(rig)
    rig.offer("hr", "file:///loras/hr", pin=True)
    await rig.settle()
    assert states(rig) == {"hr": "Loaded", "sql": "Loaded"}
    assert rig.worker(1).commands[-2:] == ["set_loras hr,sql"] * 2  # the second with the digest of hr
    assert [each.get("resource") for each in rig.status["adapters"]] == ["hr", None]
    status = rig.offered("hr")
    assert {key: value for key, value in status.items() if key != "conditions"} == {
        "observedGeneration": 1,
        "state": "Loaded",
        "name": "hr",
        "digest": OF_HR,
        "kind": "LoRA",
        "rank": 8,
        "slotBytes": 1 << 20,
        "loadedReplicas": 2,
        "replicas": 2,
    }
    assert condition(rig, "hr", "Resolved") == ("True", "Resolved", "InferenceDeployment tiny serves it as hr")
    assert condition(rig, "hr", "Loaded") == ("True", "Loaded", "2 of 2 replicas serve it")
    assert events_of(rig, "hr") == ["Loaded"]
    counted = 'dormouse_adapters{deployment="tiny",namespace="team",state="Loaded"} '
    assert f"{counted}2.0" in rig.metrics.render().decode()
    rig.kube.finish_deletion(INFERENCE_ADAPTERS, "team", "hr")
    await rig.settle()
    assert states(rig) == {"sql": "Loaded"}
    assert rig.worker(1).commands[-1] == "set_loras sql"
    assert uids(rig) == before


@pytest.mark.parametrize(
    ("engine", "offered", "reason", "words"),
    [
        ({"enableLora": False}, {}, "AdaptersOff", "set its spec.engine.enableLora true"),
        ({}, {"name": "tiny"}, "AdapterNameTaken", "tiny is the name of the base model"),
        ({}, {"name": "sql"}, "AdapterNameTaken", "spec.adapters of the base has the name sql"),
        (
            {},
            {"uri": "pvc://theirs/hr"},
            "ClaimNotMounted",
            "the claim theirs, only: none; add it to its spec.adapterC",
        ),
        (
            {},
            {"uri": "hf://org/hr", "tokenSecretRef": {"name": "theirs"}},
            "SecretNotMounted",
            "the Secret theirs, only: none; add it to its spec.adapterSecrets",
        ),
        (
            {"maxCpuLoras": 2, "maxLoras": 1},
            {},
            "NoAdapterPlace",
            "has 2 adapters, and its spec.engine.maxCpuLoras is 2",
        ),
        ({"maxLoras": 1}, {"pin": True}, "TooManyPins", "one slot stays free of pins"),
        ({}, {"uri": "pvc://loras/../x"}, "InvalidSpec", "spec.uri is 'pvc://loras/../x'"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "",
)
async def test_what_a_base_cannot_take_is_refused_for_a_reason_and_changes_nothing(rig, engine, offered, reason, words):
    own = [SQL, {"name": "x", "uri": "file:///x"}]
    await rig.serving(engine={**ENGINE, **engine}, adapters=own if engine.get("enableLora", True) else [])
    before, told = uids(rig), list(rig.worker().commands)
    rig.offer("hr", "file:///loras/hr", **offered)
    await rig.settle()
    status, found, message = condition(rig, "hr", "Resolved")
    assert (status, found) == ("False", reason)
    assert words in message
    assert condition(rig, "hr", "Loaded")[:2] == ("False", "NotResolved")
    assert rig.offered("hr")["state"] == "Refused"
    assert events_of(rig, "hr") == [reason]
    assert (uids(rig), rig.worker().commands) == (before, told)
    assert len(serving(rig)) == 1


async def test_a_base_that_does_not_exist_is_a_reason_until_it_does(rig):
    rig.offer("hr", "file:///loras/hr")
    await rig.settle()
    assert condition(rig, "hr", "Resolved") == (
        "False",
        "BaseNotFound",
        "there is no InferenceDeployment tiny in the namespace team",
    )
    await rig.serving(engine=ENGINE)
    assert rig.offered("hr")["state"] == "Loaded"
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, *rig.key)
    await rig.reconcile()
    assert condition(rig, "hr", "Resolved")[1] == "BaseNotFound"


async def test_a_base_that_cannot_be_read_is_a_reason(rig):
    rig.apply(model={"uri": "ftp://nowhere"})
    rig.offer("hr", "file:///loras/hr")
    await rig.settle()
    assert condition(rig, "hr", "Resolved")[1] == "BaseInvalid"
    assert "ftp://nowhere" in condition(rig, "hr", "Resolved")[2]


async def test_of_two_with_one_name_the_oldest_keeps_it_and_the_other_has_it_when_that_goes(rig):
    await rig.serving(engine=ENGINE)
    rig.offer("zeta", "file:///loras/old", name="hr")
    rig.offer("alpha", "file:///loras/young", name="hr")
    await rig.settle()
    assert (rig.offered("zeta")["state"], rig.offered("alpha")["state"]) == ("Loaded", "Refused")
    assert condition(rig, "alpha", "Resolved")[2] == "InferenceAdapter zeta has the name hr; set another"
    rig.kube.finish_deletion(INFERENCE_ADAPTERS, "team", "zeta")
    await rig.settle()
    assert rig.offered("alpha")["digest"] == f"{len('/loras/young'):064x}"
    assert rig.status["adapters"][0]["uri"] == "file:///loras/young"


async def test_a_claim_of_the_base_may_be_used_by_all_and_takes_no_other_pod(rig):
    await rig.serving(engine=ENGINE, adapterClaims=["loras"])
    before = uids(rig)
    rig.offer("hr", "pvc://loras/hr")
    await rig.settle()
    assert rig.offered("hr")["state"] == "Loaded"
    assert uids(rig) == before


async def test_a_secret_of_the_base_may_be_named_by_all_and_takes_no_other_pod(rig):
    await rig.serving(engine=ENGINE, adapterSecrets=["hub"])
    before = uids(rig)
    rig.offer("hr", "hf://org/hr", tokenSecretRef={"name": "hub"})
    await rig.settle()
    assert rig.offered("hr")["state"] == "Loaded"
    assert uids(rig) == before
    assert rig.worker().adapters.wanted[0].token == "hub/token"


async def test_groups_of_several_pods_fetch_nothing_for_others_either(rig):
    await rig.serving(engine=ENGINE, parallelism={"pipeline": 2})
    rig.offer("hr", "hf://org/hr")
    await rig.settle()
    assert condition(rig, "hr", "Resolved")[1] == "NotFetched"


async def test_what_a_worker_cannot_load_is_told_to_its_owner_and_the_base_serves(rig):
    rig.node.adapter_files = {"/loras/hr": "use_dora is True"}
    await rig.serving(engine=ENGINE)
    rig.offer("hr", "file:///loras/hr")
    await rig.settle()
    assert condition(rig, "hr", "Loaded")[:2] == ("False", "AdapterFailed")
    assert condition(rig, "hr", "Loaded")[2].endswith("use_dora is True")
    assert events_of(rig, "hr") == ["AdapterFailed"]
    rig.worker().adapters.files.clear()
    rig.offer("hr", "file:///loras/hr-2")
    await rig.settle()
    assert rig.offered("hr")["state"] == "Loaded"
    assert sorted(events_of(rig, "hr")) == ["AdapterFailed", "Loaded"]
    assert len(serving(rig)) == 1


async def test_a_sleep_and_a_wake_are_told_in_the_status_and_no_events_of_them(rig):
    await rig.serving(engine=ENGINE)
    rig.offer("hr", "file:///loras/hr")
    await rig.settle()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    assert (rig.offered("hr")["state"], rig.offered("hr")["digest"]) == ("Waiting", OF_HR)
    rig.apply(lifecycle={"desiredState": "Active"})
    await passes(rig, 3)
    await rig.settle()
    assert rig.offered("hr")["state"] == "Loaded"
    assert events_of(rig, "hr") == ["Loaded"]


async def test_a_restarted_operator_writes_nothing_again(rig):
    await rig.serving(engine=ENGINE)
    rig.offer("hr", "file:///loras/hr")
    await rig.settle()
    before = rig.kube.version
    rig.restart_operator()
    await passes(rig, 2)
    assert rig.kube.version == before


async def test_a_status_that_cannot_be_written_keeps_no_other_from_its_own_and_is_tried_again(rig):
    await rig.serving(engine=ENGINE)
    rig.offer("a", "file:///loras/a")
    rig.offer("b", "file:///loras/b")
    rig.pump.pump()
    rig.kube.fail("patch_status", INFERENCE_ADAPTERS, Unavailable("busy"))
    with pytest.raises(Unavailable):
        await rig.adapters.reconcile(AdaptersKey(*rig.key))
    assert [bool(rig.offered(name)) for name in ("a", "b")] == [False, True]
    await rig.settle()
    assert [rig.offered(name)["state"] for name in ("a", "b")] == ["Loaded"] * 2


async def test_one_that_changed_meanwhile_is_looked_at_again(rig):
    rig.offer("hr", "file:///loras/hr")
    rig.pump.pump()
    rig.offer("hr", "file:///loras/hr-2")
    assert await rig.adapters.reconcile(AdaptersKey(*rig.key)) == 0.5
    assert repr(rig.adapters) == "AdapterReconciler(1 bases)"
    rig.kube.finish_deletion(INFERENCE_ADAPTERS, "team", "hr")
    rig.pump.pump()
    assert await rig.adapters.reconcile(AdaptersKey(*rig.key)) is None
    assert rig.adapters.seen == {}


def test_what_is_looked_at_anew_is_told_by_the_base_and_its_namespace():
    assert str(AdaptersKey("team", "tiny")) == "InferenceAdapters of team/tiny"
