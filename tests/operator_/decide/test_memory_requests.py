"""What a pod asks for while it sleeps, by how deep and by whether anybody is about to wake it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide import memory_requests
from dormouse_operator.decide.actions import ResizeMemory, WakeUp
from dormouse_operator.decide.block_agreement import blocks_of
from dormouse_operator.decide.conditions import scheduled
from dormouse_operator.decide.replica import next_step
from dormouse_operator.manifests.memory import memory_manifest, with_memory_request
from dormouse_operator.model import Condition, WorkerState
from dormouse_operator.model.running import PodMemory
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import a_deployment, a_pod, a_situation, a_worker

FULL = PodMemory(full_bytes=20 * GIB, requested_bytes=20 * GIB, allocated_bytes=20 * GIB)
SHORT = replace(FULL, requested_bytes=GIB, allocated_bytes=GIB)
ACCEPTED = Condition("Accepted", "True", "Accepted", "")


def situation(state=WorkerState.ASLEEP, level=2, *, order="Asleep", shrinks=True, device="cuda", memory=FULL, **fields):
    deployment = a_deployment()
    lifecycle = replace(deployment.lifecycle, desired_state=order, shrinks_requests=shrinks)
    deployment = replace(deployment, lifecycle=lifecycle, engine=replace(deployment.engine, device=device))
    pod = a_pod(memory=memory, gate_open=False, **fields)
    return a_situation(a_worker(state, sleep_level=level) if state else None, deployment=deployment, pods=(pod,))


@pytest.mark.parametrize(
    ("seen", "wanted_gib"),
    [
        (situation(WorkerState.STANDBY, 3), 1),
        (situation(), 4),
        (situation(device="cpu"), 2),
        (situation(level=1), None),
        (situation(WorkerState.READY, 0), None),
        (situation(order="Active"), None),
        (situation(shrinks=False), None),
        (situation(shrinks=False, memory=SHORT), 20),
        (situation(order="Active", memory=SHORT), 20),
        (situation(WorkerState.STANDBY, 3, memory=SHORT), None),
        (situation(memory=replace(FULL, allocated_bytes=0)), None),
        (situation(None), None),
        (situation(has_ended=True), None),
    ],
)
def test_a_pod_asks_for_less_only_while_it_sleeps_without_weights(seen, wanted_gib):
    [pod] = seen.pods
    expected = [ResizeMemory(pod, wanted_gib * GIB)] if wanted_gib else []
    assert memory_requests.steps(seen) == expected


@pytest.mark.parametrize(("memory", "step"), [(FULL, WakeUp), (SHORT, type(None))])
def test_a_wake_waits_for_all_of_its_memory(memory, step):
    seen = situation(order="Active", memory=memory)
    assert type(next_step(seen, seen.pods[0], blocks_of(seen))) is step


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (situation(order="Active", memory=replace(SHORT, complaint="node is full")), "WaitingForMemory"),
        (situation(order="Active", memory=SHORT), "Scheduled"),
        (situation(memory=replace(SHORT, complaint="node is full")), "Scheduled"),
    ],
)
def test_it_is_said_which_pod_waits_for_memory_and_why(seen, reason):
    condition = scheduled.evaluate(seen, ACCEPTED)
    assert condition.reason == reason
    assert ("node is full" in condition.message) == (reason == "WaitingForMemory")


@pytest.mark.parametrize(
    ("resources", "noted"),
    [
        ({"requests": {"memory": "2Gi"}, "limits": {"memory": "4Gi"}}, "2Gi"),
        ({"limits": {"memory": "4Gi"}}, "4Gi"),
        ({}, None),
    ],
)
def test_a_pod_is_made_with_a_note_of_what_it_asks_for(resources, noted):
    pod = {"metadata": {}, "spec": {"containers": [{"name": "worker", "resources": resources}]}}
    annotations = with_memory_request(pod)["metadata"].get("annotations") or {}
    assert annotations.get("inference.dormouse.dev/memory-request") == noted


def test_a_resize_is_of_this_very_pod_and_of_its_request_alone():
    pod = a_pod()
    made = memory_manifest("team", pod, 5)
    assert made["metadata"] == {"name": pod.name, "namespace": "team", "uid": pod.uid}
    assert made["spec"] == {"containers": [{"name": "worker", "resources": {"requests": {"memory": "5"}}}]}
