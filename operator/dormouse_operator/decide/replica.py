"""The one next step of one replica on its way to serve: initialise, open or close the gate, wake. Pure, stores nothing.

What makes it hard: a worker that serves must not lose its requests because a newcomer reported less. Such workers are
taken out of the Service one at a time, and re-initialised when idle.
"""

from __future__ import annotations

from dormouse_operator.decide import adapters
from dormouse_operator.decide.actions import Drain, EndRequests, InitializeCache, ReplicaAction, SetGate, WakeUp
from dormouse_operator.decide.block_agreement import Agreement, Blocks
from dormouse_operator.decide.draining import is_drained, is_late
from dormouse_operator.decide.membership import Stance
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AT_REST, AWAKE, Pod, WorkerState


def next_step(situation: Situation, pod: Pod, blocks: Blocks) -> ReplicaAction | None:
    """Return the next step of a replica, None if it has to wait or is where it should be. `blocks` are its revision's.

    An order to sleep stops the way to service once the cache is allocated; `sleep` has the steps from there.
    """
    state = situation.state(pod)
    if state is None or pod.has_ended:
        return None
    if stance := situation.stance(pod):
        return _as_member(situation, pod, blocks, stance)
    if pod.gate_open and (state is not WorkerState.READY or situation.wants_sleep):
        return SetGate(pod, is_open=False, reason="GoingToSleep" if situation.wants_sleep else _camel(state))
    if state is WorkerState.PROFILED:
        return _initialize(pod, blocks)
    return None if situation.wants_sleep else _towards_service(situation, pod, blocks)


def _as_member(situation: Situation, pod: Pod, blocks: Blocks, stance: Stance) -> ReplicaAction | None:
    """Return the next step under a pool, which alone puts to sleep and wakes, and shuts the gate of who leaves."""
    state = situation.state(pod)
    if pod.gate_open and state not in AWAKE:
        return SetGate(pod, is_open=False, reason=_camel(state or WorkerState.STARTING))
    if stance is Stance.RESTS:
        return None
    if state is WorkerState.PROFILED:
        return _initialize(pod, blocks)
    is_to_serve = stance is Stance.SERVES and state in AWAKE
    return _towards_service(situation, pod, blocks) if is_to_serve else None


def _initialize(pod: Pod, blocks: Blocks) -> InitializeCache | None:
    agreement = blocks.agreement
    if agreement is None or not blocks.counts(pod):
        return None
    return InitializeCache(pod, agreement.num_gpu_blocks, agreement.num_cpu_blocks)


def _towards_service(situation: Situation, pod: Pod, blocks: Blocks) -> ReplicaAction | None:
    state, agreement = situation.state(pod), blocks.agreement
    if state in AT_REST:
        return None if situation.is_spare(pod) or pod.memory.is_short else WakeUp((pod,))
    if state not in AWAKE or agreement is None:
        return None
    if situation.allocated_gpu_blocks(pod) != agreement.num_gpu_blocks:
        return _reinitialize(situation, pod, blocks, agreement)
    if state is WorkerState.DRAINING:
        return WakeUp((pod,))
    if pod.gate_open or not adapters.is_told(situation, pod):
        return None
    return SetGate(pod, is_open=True, reason="CacheAllocated")


def _reinitialize(situation: Situation, pod: Pod, blocks: Blocks, agreement: Agreement) -> ReplicaAction | None:
    """Take a serving worker with another count out of the Service, drain it, re-initialise it; one at a time."""
    if pod is not _first_in_turn(situation, agreement):
        return None
    if pod.gate_open:
        return None if _is_last_of_some(situation, pod, blocks) else SetGate(pod, is_open=False, reason="Reallocating")
    if is_drained(situation, pod):
        return _initialize(pod, blocks)
    return EndRequests(pod) if is_late(situation, pod) else Drain(pod)


def _is_last_of_some(situation: Situation, pod: Pod, blocks: Blocks) -> bool:
    """Return whether nobody else serves yet, but somebody is about to: then the Service must not be left empty."""
    others = [other for other, _ in blocks.reports if other is not pod]
    about_to_serve = {WorkerState.PROFILED, WorkerState.INITIALIZING, WorkerState.READY}
    serves = any(other.is_ready and other.gate_open for other in others)
    return not serves and any(situation.state(other) in about_to_serve for other in others)


def _first_in_turn(situation: Situation, agreement: Agreement) -> Pod:
    """Return which of the workers with another count goes first: one that is out already, else the lowest index."""
    others = [
        pod
        for pod in situation.replicas
        if situation.state(pod) in AWAKE and situation.allocated_gpu_blocks(pod) != agreement.num_gpu_blocks
    ]
    return min(others, key=lambda pod: (pod.gate_open, pod.index))


def _camel(state: WorkerState) -> str:
    return f"Worker{state.capitalize()}"
