"""The oldest of those that want a model name answers to it."""

from __future__ import annotations

import pytest

from dormouse_api.short_names import NameRules
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_operator.model import Key
from dormouse_operator.watch.model_names import SOMEBODY, Claims

OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def infd(called, created=OLD, namespace="a", **model):
    """Return a deployment of this age."""
    metadata = {"namespace": namespace, "name": called, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"model": {"uri": "file:///m", **model}}}


def test_the_older_one_has_the_name_whoever_was_heard_of_first():
    claims = Claims()
    claims.put(infd("x", YOUNG))
    assert claims.put(infd("y", OLD, name="x")) == [Key("a", "x")]
    assert claims.rival_of(Key("a", "x")) == "a/y"
    assert claims.rival_of(Key("a", "y")) == ""
    assert repr(claims) == "Claims(2 deployments, {'x': ['a/y', 'a/x']})"


def test_of_the_same_second_the_lesser_key_has_it():
    claims = Claims()
    claims.put(infd("x", namespace="b"))
    claims.put(infd("x", namespace="a"))
    assert claims.rival_of(Key("b", "x")) == "a/x"


def test_when_the_owner_goes_or_takes_another_name_the_next_one_has_it():
    claims = Claims()
    claims.put(infd("x"))
    claims.put(infd("y", YOUNG, name="x"))
    assert claims.put(infd("x", name="other")) == [Key("a", "y")]
    assert claims.rival_of(Key("a", "y")) == ""
    claims.put(infd("x", name="x"))
    assert claims.remove(Key("a", "x")) == [Key("a", "y")]
    assert claims.rival_of(Key("a", "y")) == ""


def test_what_is_not_known_has_no_rival_and_can_be_forgotten():
    claims = Claims()
    assert claims.rival_of(Key("a", "x")) == ""
    assert claims.remove(Key("a", "x")) == []
    claims.put(infd("x"))
    assert claims.put(infd("x")) == []


def test_another_namespace_waits_for_the_grace_and_is_told_of_once_it_is_over():
    now = [0.0]
    claims = Claims(NameRules(grace_s=600.0), lambda: now[0])
    claims.put(infd("x", namespace="a"))
    claims.put(infd("x", YOUNG, namespace="b"))
    assert claims.remove(Key("a", "x")) == [Key("b", "x")]
    now[0] = 599.0
    assert (claims.rival_of(Key("b", "x")), claims.freed()) == ("a/x", [])
    now[0] = 600.0
    assert (claims.freed(), claims.freed()) == ([Key("b", "x")], [])
    assert claims.rival_of(Key("b", "x")) == ""


def test_who_waited_when_an_operator_begins_waits_the_grace_though_nobody_knows_whom_for():
    now = [0.0]
    claims = Claims(NameRules(grace_s=600.0), lambda: now[0])
    condition = {"type": "Degraded", "status": "True", "reason": "NameTaken"}
    claims.put(infd("x") | {"status": {"conditions": [condition]}})
    assert claims.rival_of(Key("a", "x")) == SOMEBODY
    now[0] = 600.0
    assert claims.freed() == [Key("a", "x")]
    assert claims.rival_of(Key("a", "x")) == ""


@pytest.mark.parametrize("told", [{"name": "x", "takenBy": "a/x"}, {"name": "former"}, None])
def test_an_operator_that_starts_gives_a_live_name_to_no_older_decoy_whatever_else_ails_that(told):
    claims = Claims()
    ill = {"conditions": [{"type": "Degraded", "status": "True", "reason": "Forbidden"}]}
    claims.put(infd("decoy", OLD, "b", name="x") | {"status": {**ill, **({"modelName": told} if told else {})}})
    claims.put(infd("x", YOUNG, "a") | {"status": {"modelName": {"name": "x"}}})
    assert (claims.rival_of(Key("a", "x")), claims.rival_of(Key("b", "decoy"))) == ("", "a/x")


def test_a_name_that_spells_another_namespace_with_deployments_is_that_namespaces():
    claims = Claims()
    claims.put(infd("thief", namespace="b", name="a/x"))
    assert claims.rival_of(Key("b", "thief")) == ""
    claims.put(infd("y", namespace="a"))
    assert claims.rival_of(Key("b", "thief")) == "the namespace a"


async def test_a_deployment_whose_name_is_taken_says_so_until_it_is_free(rig):
    older = infd("older", "2025-01-01T00:00:00Z", namespace="team", name="tiny")
    rig.kube.put(INFERENCE_DEPLOYMENTS, older)
    await rig.serving()
    assert rig.condition("Degraded")[:2] == ("True", "NameTaken")
    assert "team/older has the model name" in rig.condition("Degraded")[2]
    assert rig.status["phase"] == "Active"
    seen = dict(rig.reconciler.seen)
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, "team", "older")
    await rig.settle()
    assert dict(rig.cache.versions())[rig.key] != seen[rig.key], "the resync finds it"
    assert rig.condition("Degraded")[:2] == ("False", "AsExpected")


async def test_who_has_the_name_stands_in_the_status_whatever_else_needs_attention(rig):
    rig.kube.put(INFERENCE_DEPLOYMENTS, infd("older", "2025-01-01T00:00:00Z", namespace="team", name="tiny"))
    await rig.serving()
    like = rig.kube.peek(PODS, "team", rig.pods[0])
    looks = {**like["metadata"], "name": "looks-like-it", "uid": "its-own", "ownerReferences": []}
    rig.kube.put(PODS, {**like, "metadata": looks})
    await rig.reconcile()
    assert rig.condition("Degraded")[:2] == ("True", "ForeignPod")
    assert rig.status["modelName"] == {"name": "tiny", "takenBy": "team/older"}
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, "team", "older")
    await rig.reconcile()
    assert rig.status["modelName"] == {"name": "tiny"}


async def test_a_spec_that_can_not_be_read_hides_nobody_elses_name(rig):
    rig.kube.put(INFERENCE_DEPLOYMENTS, infd("older", "2025-01-01T00:00:00Z", namespace="team", name="tiny"))
    rig.apply(scaling={"maxReplicas": 0})
    await rig.reconcile()
    assert (rig.status["phase"], rig.status["modelName"]["takenBy"]) == ("Rejected", "team/older")
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, "team", "older")
    await rig.reconcile()
    assert rig.status["modelName"] == {"name": "tiny"}
