"""Whose pods a deployment's are: those that an operator recorded, not those that only name it as their owner."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, Kind, Resource
from dormouse_kube.errors import Unavailable
from dormouse_kube.testing import FakeKube
from dormouse_operator.decide.seals import SPARE
from dormouse_operator.parse import format_time
from tests.operator_.kit import uids


def forged(rig, name, uid="its-own", **status):
    """Have somebody who may create pods make one that is like the deployment's first, owner and all."""
    like = copy.deepcopy(rig.kube.peek(PODS, "team", rig.pods[0]))
    like["metadata"] |= {"name": name, "uid": uid, "creationTimestamp": format_time(rig.clock())}
    like["status"] |= {"podIP": "10.9.9.9", **status}
    rig.kube.put(PODS, like)


def recorded(rig):
    return {pod["uid"] for pod in rig.status["pods"]}


class WithWebhook(FakeKube):
    """An API server with a webhook that takes the annotations off pods."""

    async def create(self, kind: Kind, obj: Resource) -> Resource:
        metadata = {key: value for key, value in obj["metadata"].items() if key != "annotations"}
        return await super().create(kind, {**obj, "metadata": metadata})


async def test_a_pod_that_names_the_deployment_as_its_owner_gets_no_request_and_no_order_and_goes(rig):
    await rig.serving()
    mine = uids(rig)
    forged(rig, "looks-like-it")
    await rig.reconcile()
    assert recorded(rig) == mine
    assert rig.condition("Degraded")[:2] == ("True", "ForeignPod")
    assert "pod looks-like-it names this object as its owner, and no operator made it" in rig.condition("Degraded")[2]
    await rig.settle()
    assert uids(rig) == mine == recorded(rig)
    assert "looks-like-it" not in rig.workers.asked
    assert rig.condition("Degraded")[:2] == ("False", "AsExpected")


async def test_a_pod_that_took_the_name_of_one_that_is_to_be_made_is_not_made_ours_by_that(rig):
    await rig.serving()
    name = rig.pods[0]
    like = rig.kube.peek(PODS, "team", name)
    rig.apply(replicas=0)
    await rig.settle()
    rig.clock.step(SPARE.total_seconds() + 1)
    created = format_time(rig.clock())
    rig.kube.put(PODS, {**like, "metadata": {**like["metadata"], "uid": "its-own", "creationTimestamp": created}})
    rig.apply(replicas=1)
    await rig.reconcile()
    assert recorded(rig) == set()
    await rig.until_profiled()
    await rig.settle()
    assert rig.pods == [name]
    assert uids(rig) == recorded(rig)
    assert uids(rig).isdisjoint({"its-own"})


async def test_an_operator_that_starts_knows_the_pods_of_before_by_the_status(rig):
    await rig.serving(replicas=2)
    before = uids(rig)
    forged(rig, "looks-like-it")
    rig.restart_operator()
    await rig.settle()
    assert uids(rig) == before == recorded(rig)


async def test_a_pod_whose_maker_died_before_it_could_record_it_is_known_by_its_seal(rig):
    rig.apply()
    await rig.reconcile()
    before = uids(rig)
    rig.restart_operator()
    await rig.until_profiled()
    await rig.settle()
    assert uids(rig) == before == recorded(rig)


async def test_who_copies_a_seal_gains_nothing_by_it_for_another_name_or_later(rig):
    await rig.serving()
    mine, name = uids(rig), rig.pods[0]
    forged(rig, "looks-like-it")
    await rig.settle()
    assert uids(rig) == mine == recorded(rig)
    rig.clock.step(SPARE.total_seconds() + 1)
    forged(rig, "looks-like-it")
    copied = rig.kube.peek(PODS, "team", "looks-like-it")
    for taken in ("looks-like-it", name):
        rig.kube.finish_deletion(PODS, "team", taken)
    rig.kube.put(PODS, {**copied, "metadata": {**copied["metadata"], "name": name}})
    await rig.reconcile()
    assert recorded(rig) == set()
    await rig.until_profiled()
    await rig.settle()
    assert uids(rig).isdisjoint({"its-own"})
    assert rig.status["phase"] == "Active"


async def test_with_other_seeds_the_status_still_knows_the_pods(rig):
    await rig.serving(replicas=2)
    before = uids(rig)
    rig.seeds = ("another",)
    rig.restart_operator()
    await rig.settle()
    assert uids(rig) == before == recorded(rig)


async def test_pods_of_an_operator_that_did_not_record_any_are_kept_and_recorded(rig):
    await rig.serving(replicas=2)
    before = uids(rig)
    rig.kube.edit(INFERENCE_DEPLOYMENTS, "team", "tiny", lambda obj: obj["status"].pop("pods"))
    rig.restart_operator()
    await rig.settle()
    assert uids(rig) == before == recorded(rig)


@pytest.mark.parametrize("is_told", [False, True])
async def test_what_an_operator_has_not_heard_of_yet_costs_no_pod(rig, is_told):
    """A watch of pods may be ahead of that of deployments: of a status that is older than a pod nothing follows."""
    rig.apply()
    await rig.reconcile()
    old = copy.deepcopy(rig.kube.peek(INFERENCE_DEPLOYMENTS, "team", "tiny"))
    await rig.until_profiled()
    await rig.settle()
    before = uids(rig)
    if is_told:  # then not even its status would have to change
        told = copy.deepcopy(rig.kube.peek(INFERENCE_DEPLOYMENTS, "team", "tiny"))
        old["status"] = {**told["status"], "pods": []}
    rig.seeds = ("another",)  # so that seals prove nothing
    rig.restart_operator()
    rig.cache.take(INFERENCE_DEPLOYMENTS, old)
    for pod in rig.kube.everything(PODS):
        rig.cache.take(PODS, pod)
    rig.cache.is_complete = True
    for _ in range(3):
        await rig.reconcile_blindly()
    assert uids(rig) == before
    rig.cache.is_complete = False  # and now it hears of everything
    await rig.settle()
    assert uids(rig) == before == recorded(rig)


async def test_nothing_goes_before_the_status_that_does_not_know_it_was_written(rig):
    await rig.serving()
    forged(rig, "looks-like-it")
    rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Unavailable("down"), times=3)
    for _ in range(3):
        await rig.reconcile()
        assert "looks-like-it" in rig.pods
    await rig.settle()
    assert "looks-like-it" not in rig.pods


async def test_each_try_to_delete_it_follows_a_write_that_proves_the_status_to_be_the_present_one(rig):
    await rig.serving()
    forged(rig, "looks-like-it")
    rig.kube.fail("delete", PODS, Unavailable("down"), times=2)
    rig.kube.calls.clear()
    for _ in range(3):
        await rig.reconcile()
    verbs = [call.verb for call in rig.kube.mutations() if call.verb != "create"]
    assert verbs == ["patch_status", "delete"] * 3


@pytest.mark.parametrize("minutes", [-6, 6])
async def test_an_operator_whose_clock_is_wrong_knows_the_pods_that_it_makes(rig, minutes):
    rig.kube.clock = lambda: rig.clock() + timedelta(minutes=minutes)
    await rig.serving(replicas=2)
    assert len([call for call in rig.kube.mutations() if (call.verb, call.plural) == ("create", PODS.plural)]) == 2
    before = uids(rig)
    forged(rig, "looks-like-it")
    rig.restart_operator()
    await rig.settle()
    assert uids(rig) == before == recorded(rig)


async def test_an_operator_knows_the_pods_that_it_makes_though_a_webhook_takes_their_seals(rig):
    rig.kube = rig.node.kube = WithWebhook(clock=rig.clock)
    rig.restart_operator()
    await rig.serving(replicas=2)
    assert len([call for call in rig.kube.mutations() if (call.verb, call.plural) == ("create", PODS.plural)]) == 2
    assert rig.status["phase"] == "Active"
    assert len(uids(rig)) == 2
    assert uids(rig) == recorded(rig)
