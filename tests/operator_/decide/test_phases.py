"""A replica's phase follows from what is observed; the deployment is called after the most telling one."""

from __future__ import annotations

import pytest

from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.phases import REPLICA_PHASES, Phase, deployment_phase, replica_phase
from dormouse_operator.model import Container, Lifecycle, WorkerState
from dormouse_operator.testing.nouns import a_deployment, a_pod, a_situation, a_worker, but, recorded

S = WorkerState
AUTO, ASLEEP = Lifecycle("Auto", 60), Lifecycle("Asleep", 60)


def phase_of(seen):
    """Return the deployment's phase."""
    found = find(seen)
    return deployment_phase(seen, found, evaluate_all(seen, found))


@pytest.mark.parametrize(
    ("state", "lifecycle", "phase"),
    [
        (None, AUTO, Phase.STARTING),
        (S.STARTING, AUTO, Phase.STARTING),
        (S.LOADING, AUTO, Phase.PROFILING),
        (S.PROFILED, AUTO, Phase.ALLOCATING),
        (S.INITIALIZING, AUTO, Phase.ALLOCATING),
        (S.READY, AUTO, Phase.ACTIVE),
        (S.READY, ASLEEP, Phase.DRAINING),
        (S.DRAINING, AUTO, Phase.DRAINING),
        (S.ASLEEP, ASLEEP, Phase.ASLEEP),
        (S.ASLEEP, AUTO, Phase.WAKING),
        (S.STANDBY, ASLEEP, Phase.ASLEEP),
        (S.STANDBY, AUTO, Phase.WAKING),
        (S.WAKING, AUTO, Phase.WAKING),
        (S.FAILED, AUTO, Phase.FAILED),
    ],
)
def test_a_replicas_phase_follows_its_worker_and_the_order(state, lifecycle, phase):
    worker = a_worker(state) if state else None
    seen = a_situation(worker, deployment=a_deployment(lifecycle=lifecycle))
    assert replica_phase(seen, find(seen), seen.pods[0]) is phase


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"is_scheduled": False}, Phase.PENDING),
        ({"has_ended": True}, Phase.FAILED),
        ({"container": Container(exit_code=1)}, Phase.FAILED),
        ({"container": Container(exit_code=1, is_running=True)}, Phase.STARTING),
        ({"container": Container(exit_code=0)}, Phase.STARTING),
    ],
)
def test_without_an_answer_the_phase_follows_the_pod(fields, phase):
    pod = a_pod(**fields)
    seen = a_situation(None, pods=(pod,))
    assert replica_phase(seen, find(seen), pod) is phase


def test_a_profiled_worker_agrees_as_long_as_another_is_waited_for():
    seen = a_situation(a_worker(S.PROFILED), a_worker(S.LOADING))
    assert replica_phase(seen, find(seen), seen.pods[0]) is Phase.AGREEING


def test_a_worker_with_a_cache_behind_a_shut_gate_is_not_active_yet():
    pod = a_pod(gate_open=False, is_ready=False)
    seen = a_situation(a_worker(S.READY), pods=(pod,))
    assert replica_phase(seen, find(seen), pod) is Phase.ALLOCATING


@pytest.mark.parametrize(
    ("states", "lifecycle", "phase"),
    [
        ([S.READY, S.READY], AUTO, Phase.ACTIVE),
        ([S.READY, S.LOADING], AUTO, Phase.DEGRADED),
        ([S.READY, S.FAILED], AUTO, Phase.DEGRADED),
        ([S.LOADING, None], AUTO, Phase.STARTING),
        ([S.LOADING, S.FAILED], AUTO, Phase.FAILED),
        ([S.ASLEEP, S.LOADING], AUTO, Phase.WAKING),
        ([S.ASLEEP, S.ASLEEP], ASLEEP, Phase.ASLEEP),
        ([S.ASLEEP, S.DRAINING], ASLEEP, Phase.DRAINING),
        ([S.ASLEEP, S.LOADING], ASLEEP, Phase.PROFILING),
    ],
)
def test_a_deployment_is_called_after_what_tells_most(states, lifecycle, phase):
    workers = [a_worker(state) if state else None for state in states]
    wanted = a_deployment(lifecycle=lifecycle, replicas=2, recorded=recorded(2000))
    assert phase_of(a_situation(*workers, deployment=wanted)) is phase


def test_a_replica_without_a_pod_is_pending():
    assert phase_of(a_situation(deployment=a_deployment())) is Phase.PENDING


def test_what_is_off_zero_or_not_accepted_says_so():
    assert phase_of(a_situation(deployment=a_deployment(replicas=0))) is Phase.OFF
    zero = a_deployment(replicas=0, lifecycle=Lifecycle("Zero", 60))
    assert phase_of(a_situation(deployment=zero)) is Phase.ZERO


def test_a_start_that_can_not_go_on_has_failed_but_a_taken_name_stops_nobody():
    stuck = a_pod(container=Container(waiting_reason="ErrImagePull"), is_ready=False)
    seen = a_situation(None, pods=(stuck,))
    assert phase_of(seen) is Phase.FAILED
    assert phase_of(but(a_situation(a_worker(S.LOADING)), name_owner="team/older")) is Phase.PROFILING


def test_every_phase_of_a_replica_has_its_place():
    assert len(set(REPLICA_PHASES)) == len(REPLICA_PHASES) == 10
