"""A canary over its life: what its status says, and that what one gateway saw is known to all."""

from __future__ import annotations

import pytest

from dormouse_api.canaries import try_of
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from tests.operator_.kit import revisions
from tests.operator_.ladders import tell

WORDS = "3 of its last 3 requests failed"


@pytest.fixture
async def canary(rig):
    """A canary of a deployment that is there."""
    metadata = {"namespace": rig.key.namespace, "name": "old"}
    rig.kube.put(INFERENCE_DEPLOYMENTS, {"metadata": metadata, "spec": {"model": {"uri": "pvc://models/old"}}})
    await rig.serving(canary={"of": "old", "weight": 10})
    return rig


def now_tried(rig) -> str:
    return try_of(rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["spec"])


def told(rig):
    return rig.status["canary"]["state"], rig.status["canary"]["message"]


def aborts(rig):
    return [event for event in rig.events if event.startswith("CanaryAborted")]


async def test_the_status_says_what_share_it_has_and_follows_the_spec_without_a_restart(canary):
    assert told(canary) == ("Serving", "gateways give it 10 % of the requests of old")
    assert canary.status["canary"]["try"] == now_tried(canary)
    before = revisions(canary)
    canary.apply(canary={"of": "old", "weight": 50, "paused": True})
    await canary.settle()
    assert told(canary) == ("Paused", "spec.canary.paused is true: old has all of its requests")
    assert revisions(canary) == before


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ("missing", "there is no InferenceDeployment missing in this namespace"),
        ("tiny", "spec.canary.of is this deployment itself; name the one whose requests it shall share"),
    ],
)
async def test_a_canary_of_nobody_is_told_so(rig, of, words):
    await rig.serving(canary={"of": of})
    assert told(rig) == ("NoStanding", words)


async def test_what_one_gateway_saw_is_written_once_and_outlives_gateways_and_operators(canary):
    tell(canary, canary_fault=WORDS, canary_try=now_tried(canary))
    tell(canary, gateway="b:1")
    await canary.settle()
    assert told(canary) == ("Aborted", WORDS)
    canary.activities.drop("a:1")
    canary.restart_operator()
    await canary.settle()
    assert told(canary) == ("Aborted", WORDS)
    assert len(aborts(canary)) == 1


async def test_another_try_is_not_aborted_for_what_the_last_one_did(canary):
    first = now_tried(canary)
    tell(canary, canary_fault=WORDS, canary_try=first)
    await canary.settle()
    canary.apply(canary={"of": "old", "weight": 20})
    await canary.settle()
    assert told(canary) == ("Serving", "gateways give it 20 % of the requests of old")
    tell(canary, canary_fault="slow", canary_try=now_tried(canary))
    await canary.settle()
    assert told(canary) == ("Aborted", "slow")
    assert len(aborts(canary)) == 2


async def test_who_is_no_canary_has_nothing_of_it_in_its_status(rig):
    await rig.serving()
    assert "canary" not in rig.status
    await rig.settle()
    rig.apply(canary={"of": "old"})
    await rig.settle()
    assert rig.status["canary"]["state"] == "NoStanding"
