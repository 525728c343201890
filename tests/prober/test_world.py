"""What scenarios read in a deployment's status, and how they wait for it."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.testing import FakeKube
from tests.prober.world import Seen, World
from tools.kubectl import Cluster
from tools.release import Release

POD = {"metadata": {"name": "owl-0", "uid": "u"}}


def seen(*pods, ready="True", progressing="Complete", revision="b", rung="Active", num=1):
    conditions = [{"type": "Ready", "status": ready}, {"type": "Progressing", "reason": progressing}]
    status = {
        "conditions": conditions,
        "readyReplicas": num,
        "rollout": {"revision": revision},
        "lifecycle": {"rung": rung},
    }
    return Seen(status, pods)


def test_nothing_is_known_of_a_deployment_without_a_status():
    nothing = Seen({}, ())
    assert (nothing.rung, nothing.revision, nothing.condition("Ready")) == ("", "", {})
    assert not nothing.serves(0)
    assert not nothing.is_at_zero()


def test_it_serves_when_all_replicas_do_and_no_pod_is_left_over():
    assert seen(POD).serves(1)
    assert not seen(POD, POD).serves(1)
    assert not seen(POD, num=0).serves(1)
    assert not seen(POD, ready="False").serves(1)


def test_a_roll_out_is_complete_when_all_pods_are_of_another_revision():
    assert seen(POD).has_rolled_out("a", 1)
    assert not seen(POD).has_rolled_out("b", 1)
    assert not seen(POD, progressing="Surging").has_rolled_out("a", 1)


def test_a_model_is_at_zero_when_its_last_pod_has_gone():
    assert seen(rung="Zero").is_at_zero()
    assert not seen(POD, rung="Zero").is_at_zero()
    assert not seen(rung="Level1").is_at_zero()


def make_world(api):
    return World(Cluster(), Release("r", "r-system", ("r",)), api, deployments=None)


async def test_a_change_ends_the_waiting_for_it():
    api = FakeKube()
    world = make_world(api)
    async with world.watching():
        waiting = asyncio.create_task(
            world.until("owl", lambda now: now.rung == "Zero" and len(now.pods), timeout_s=20)
        )
        metadata = {"namespace": "r", "name": "owl"}
        await api.create(INFERENCE_DEPLOYMENTS, {"metadata": metadata, "spec": {}})
        await api.patch_status(INFERENCE_DEPLOYMENTS, "r", "owl", {"lifecycle": {"rung": "Zero"}})
        for name, owner in (("a", "owl"), ("b", "bat")):
            labels = {LABEL_DEPLOYMENT: owner}
            await api.create(PODS, {"metadata": {"namespace": "r", "name": name, "labels": labels}, "spec": {}})
        assert await waiting == 1


async def test_what_does_not_come_about_is_told_with_the_status():
    api = FakeKube()
    world = make_world(api)
    async with world.watching():
        with pytest.raises(AssertionError, match=r"owl: not within 0.05 s; pods \[\], status {}"):
            await world.until("owl", lambda _: False, timeout_s=0.05)
