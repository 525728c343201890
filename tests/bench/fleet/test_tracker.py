"""What counts as Ready, and waiting for it."""

from __future__ import annotations

import pytest

from bench.fleet.tracker import (
    DeploymentSeen,
    FleetError,
    PodSeen,
    Tracker,
    deployment_ready,
    pod_ready,
    read_deployment,
    read_pod,
)
from dormouse_api.names import LABEL_DEPLOYMENT


def make_deployment(ready="True", generation=2, observed=2):
    status = {"observedGeneration": observed, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": "a", "generation": generation}, "status": status}


def make_pod(ready="True", **metadata):
    conditions = [{"type": "Other", "status": "True"}, {"type": "Ready", "status": ready}]
    return {
        "metadata": {"name": "a-1", "labels": {LABEL_DEPLOYMENT: "a"}, **metadata},
        "status": {"conditions": conditions},
    }


class Clock:
    """Shows what it is set to."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tracker(clock):
    return Tracker(clock)


def test_a_deployment_is_ready_only_as_of_its_present_spec():
    assert read_deployment(make_deployment(), is_gone=False).is_ready
    assert not read_deployment(make_deployment(observed=1), is_gone=False).is_ready
    assert not read_deployment(make_deployment(ready="False"), is_gone=False).is_ready
    assert not read_deployment({"metadata": {"name": "a", "generation": 1}}, is_gone=False).is_ready


def test_a_pod_that_is_being_deleted_is_not_ready():
    assert read_pod(make_pod(), is_gone=False) == PodSeen("a-1", "a", is_ready=True)
    assert not read_pod(make_pod(deletionTimestamp="now"), is_gone=False).is_ready
    assert not read_pod(make_pod(ready="False"), is_gone=False).is_ready


async def test_the_first_time_counts_and_all_are_waited_for(tracker, clock):
    ready = tracker.expect(["a", "b"], deployment_ready)
    for clock.now_s, seen in [(1.0, DeploymentSeen("a", True)), (2.0, DeploymentSeen("a", True))]:
        tracker.see(seen)
    assert not ready.done.is_set()
    clock.now_s = 3.0
    tracker.see(PodSeen("b-1", "b", True))
    tracker.see(DeploymentSeen("c", True))
    assert not ready.done.is_set()
    tracker.see(DeploymentSeen("b", True))
    assert await ready.wait("both", 1) == {"a": 1.0, "b": 3.0}


async def test_what_did_not_come_is_named(tracker):
    ready = tracker.expect(["a", "b"], deployment_ready)
    tracker.see(DeploymentSeen("a", True))
    with pytest.raises(FleetError, match="waited 0 s for both: 1 of 2, for example b did not get there"):
        await ready.wait("both", 0.0)


async def test_a_new_pod_is_one_that_was_not_there_before(tracker, clock):
    tracker.see(PodSeen("a-old", "a", True))
    updated = tracker.expect_new_pods(["a"])
    tracker.see(PodSeen("a-old", "a", False))
    tracker.see(PodSeen("a-old", "a", False, is_gone=True))
    assert not updated.done.is_set()
    clock.now_s = 5.0
    tracker.see(PodSeen("a-new", "a", False))
    assert await updated.wait("a pod", 1) == {"a": 5.0}


async def test_a_pods_readiness_fulfils_its_deployments_name(tracker):
    ready = tracker.expect(["a"], pod_ready)
    tracker.see(PodSeen("a-1", "a", False))
    assert not ready.done.is_set()
    tracker.see(PodSeen("a-1", "a", True))
    assert ready.done.is_set()


def test_a_deployment_is_settled_once_it_is_ready_with_one_ready_pod(tracker):
    for seen, is_settled in [
        (PodSeen("a-1", "a", True), False),
        (DeploymentSeen("a", True), True),
        (PodSeen("a-2", "a", True), False),
        (PodSeen("a-1", "a", True, is_gone=True), True),
        (PodSeen("a-2", "a", False), False),
        (PodSeen("a-2", "a", True), True),
        (DeploymentSeen("a", False), False),
        (DeploymentSeen("a", True), True),
        (DeploymentSeen("a", True, is_gone=True), False),
    ]:
        tracker.see(seen)
        assert tracker.is_settled("a") is is_settled, tracker


async def test_what_does_not_settle_is_named(tracker):
    tracker.see(PodSeen("a-1", "a", True))
    tracker.see(DeploymentSeen("a", True))
    with pytest.raises(FleetError, match="waited 0 s for b to be Ready with one pod"):
        await tracker.until_settled(["a", "b"], 0.0)


def test_expectations_that_are_fulfilled_are_forgotten(tracker):
    tracker.expect(["a"], deployment_ready)
    tracker.see(DeploymentSeen("a", True))
    tracker.expect(["b"], deployment_ready)
    assert repr(tracker) == "Tracker(1 ready, 0 pods, 1 expectations)"
