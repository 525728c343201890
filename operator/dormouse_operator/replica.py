"""The one next step of one replica: initialise, open or close the gate, sleep, wake. Pure, stores nothing.

What makes it hard: a worker that serves must not lose its requests because a newcomer reported less. Such workers are
taken out of the Service one at a time, and re-initialised when idle.
"""

from __future__ import annotations

from datetime import timedelta

from dormouse_operator.actions import InitializeCache, PutToSleep, ReplicaAction, SetGate, WakeUp
from dormouse_operator.capacity import Agreement
from dormouse_operator.model import Observed, Pod, WorkerState


def next_step(observed: Observed, pod: Pod, agreement: Agreement | None) -> ReplicaAction | None:
    """Return the one next step of a replica, None if it has to wait or is where it should be."""
    state = observed.state(pod)
    if state is None or pod.has_ended:
        return None
    if pod.gate_open and (state is not WorkerState.READY or observed.wants_sleep):
        return SetGate(pod, is_open=False, reason="GoingToSleep" if observed.wants_sleep else _camel(state))
    if state is WorkerState.PROFILED:
        return _initialize(pod, agreement)
    if observed.wants_sleep:
        return _towards_sleep(observed, pod, state)
    return _towards_service(observed, pod, agreement)


def _initialize(pod: Pod, agreement: Agreement | None) -> InitializeCache | None:
    if agreement is None:
        return None
    return InitializeCache(pod, agreement.num_gpu_blocks, agreement.num_cpu_blocks)


def _towards_sleep(observed: Observed, pod: Pod, state: WorkerState) -> PutToSleep | None:
    if state not in {WorkerState.READY, WorkerState.DRAINING}:
        return None
    limit_s = observed.deployment.lifecycle.drain_timeout_s
    is_late = pod.gate_since is not None and observed.now >= pod.gate_since + timedelta(seconds=limit_s)
    return PutToSleep(pod, must_abort=is_late)


def _towards_service(observed: Observed, pod: Pod, agreement: Agreement | None) -> ReplicaAction | None:
    state = observed.state(pod)
    if state in {WorkerState.ASLEEP, WorkerState.DRAINING}:
        return WakeUp(pod)
    if state is not WorkerState.READY or agreement is None:
        return None
    if observed.allocated_gpu_blocks(pod) != agreement.num_gpu_blocks:
        return _reinitialize(observed, pod, agreement)
    return None if pod.gate_open else SetGate(pod, is_open=True, reason="CacheAllocated")


def _reinitialize(observed: Observed, pod: Pod, agreement: Agreement) -> ReplicaAction | None:
    """Take a serving worker with another count out of the Service, then re-initialise it; one at a time."""
    if pod is not _first_in_turn(observed, agreement):
        return None
    if pod.gate_open:
        return SetGate(pod, is_open=False, reason="Reallocating")
    return _initialize(pod, agreement)


def _first_in_turn(observed: Observed, agreement: Agreement) -> Pod:
    """Return which of the workers with another count goes first: one that is out already, else the lowest index."""
    others = [
        pod
        for pod in observed.replicas
        if observed.state(pod) is WorkerState.READY and observed.allocated_gpu_blocks(pod) != agreement.num_gpu_blocks
    ]
    return min(others, key=lambda pod: (pod.gate_open, pod.index))


def _camel(state: WorkerState) -> str:
    return f"Worker{state.capitalize()}"
