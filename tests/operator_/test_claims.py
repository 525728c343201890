"""The oldest of those that want a model name answers to it."""

from __future__ import annotations

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_operator.claims import Claims
from dormouse_operator.model import Key

OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def infd(called, created=OLD, namespace="a", **model):
    """Return a deployment of this age."""
    metadata = {"namespace": namespace, "name": called, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"model": {"uri": "file:///m", **model}}}


def test_the_older_one_has_the_name_whoever_was_heard_of_first():
    claims = Claims()
    claims.put(infd("x", YOUNG))
    assert claims.put(infd("y", OLD, name="x")) == [Key("a", "x")]
    assert claims.rival_of(Key("a", "x")) == Key("a", "y")
    assert claims.rival_of(Key("a", "y")) is None
    assert repr(claims) == "Claims(2 deployments, {'x': ['a/y', 'a/x']})"


def test_of_the_same_second_the_lesser_key_has_it():
    claims = Claims()
    claims.put(infd("x", namespace="b"))
    claims.put(infd("x", namespace="a"))
    assert claims.rival_of(Key("b", "x")) == Key("a", "x")


def test_when_the_owner_goes_or_takes_another_name_the_next_one_has_it():
    claims = Claims()
    claims.put(infd("x"))
    claims.put(infd("y", YOUNG, name="x"))
    assert claims.put(infd("x", name="other")) == [Key("a", "y")]
    assert claims.rival_of(Key("a", "y")) is None
    claims.put(infd("x", name="x"))
    assert claims.remove(Key("a", "x")) == [Key("a", "y")]
    assert claims.rival_of(Key("a", "y")) is None


def test_what_is_not_known_has_no_rival_and_can_be_forgotten():
    claims = Claims()
    assert claims.rival_of(Key("a", "x")) is None
    assert claims.remove(Key("a", "x")) == []
    claims.put(infd("x"))
    assert claims.put(infd("x")) == []


async def test_a_deployment_whose_name_is_taken_says_so_until_it_is_free(rig):
    older = infd("older", "2025-01-01T00:00:00Z", namespace="team", name="tiny")
    rig.kube.put(INFERENCE_DEPLOYMENTS, older)
    await rig.serving()
    assert rig.condition("Degraded")[:2] == ("True", "NameTaken")
    assert "team/older is older" in rig.condition("Degraded")[2]
    assert rig.status["phase"] == "Active"
    seen = dict(rig.reconciler.seen)
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, "team", "older")
    await rig.settle()
    assert dict(rig.cache.versions())[rig.key] != seen[rig.key], "the resync finds it"
    assert rig.condition("Degraded")[:2] == ("False", "AsExpected")
