"""Which pods sleep on while others of their deployment serve. Pure.

A deployment that was woken by a request is woken as far as the load asks for (`awake_replicas`). As long as so many are
awake, or come, the rest is spare: it counts as being where it should be. Who is awake already comes first, and who
refuses to wake is no reason to leave a request waiting: the next one is asked too. Who sleeps is woken before who is in
STANDBY; an engine that starts already is as good as one that would have to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dormouse_operator.decide.rollout.inventory import LEAVING, SWAPPING
from dormouse_operator.model import AWAKE, Ladder, Pod, Rung, Worker, WorkerState

_COMING = AWAKE | {WorkerState.INITIALIZING, WorkerState.WAKING}
_STARTING = {WorkerState.STARTING, WorkerState.LOADING, WorkerState.PROFILED}


def choose(
    ladder: Ladder | None, pods: Sequence[Pod], workers: Mapping[str, Worker], refused: Collection[str]
) -> frozenset[str]:
    """Return the names of the pods that sleep on. `refused` are the names of those whose last command failed."""
    if ladder is None or ladder.rung is not Rung.ACTIVE or ladder.awake is None:
        return frozenset()
    states = {pod.name: workers[pod.name].state for pod in pods if pod.name in workers and not pod.is_deleting}
    num_coming = sum(states.get(pod.name) in _COMING and not _is_on_its_way_out(pod) for pod in pods)
    num_needed = max(0, ladder.awake - num_coming)
    by_place = sorted(pods, key=lambda pod: (pod.index, pod.name))
    resting = [pod.name for pod in by_place if not (num_needed and pod.name in refused)]
    sleeping = [name for name in resting if states.get(name) is WorkerState.ASLEEP]
    standing_by = [name for name in resting if states.get(name) is WorkerState.STANDBY]
    num_starting = sum(state in _STARTING for state in states.values())
    num_started = max(0, num_needed - len(sleeping) - num_starting)
    return frozenset((*sleeping[num_needed:], *standing_by[num_started:]))


def _is_on_its_way_out(pod: Pod) -> bool:
    return not pod.gate_open and pod.gate_reason in {LEAVING, SWAPPING}
