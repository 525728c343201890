"""The next steps towards a sleep, over all replicas at once. Pure, stores nothing.

    gate shut → every worker drained, or its time is over → all are put to sleep together, or none

Who serves no requests yet (loads, profiles, starts) holds the others up no more than it would hold up a start: it
joins when its cache is there. A worker that sleeps less deep than it should is put to sleep again with the others.
Where one does not claim the level, nobody is ordered there.

An order ends requests that do not end in time. A deployment that sleeps because nobody calls ends none: a request that
came in since the decision cancels the sleep, and each worker refuses it if its request counter moved.
"""

from __future__ import annotations

from dormouse_operator.decide import sleep_levels
from dormouse_operator.decide.actions import Drain, PutToSleep, ReplicaAction
from dormouse_operator.decide.draining import is_drained, is_late
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AWAKE, Pod, SleepLevel, WorkerState


def steps(situation: Situation) -> list[ReplicaAction]:
    """Return what to do now towards a sleep."""
    if not situation.wants_sleep:
        return _give_way(situation, situation.observed.pressure.level) if situation.observed.pressure else []
    concerned = [pod for pod in situation.replicas if _must_fall_asleep(situation, pod)]
    if sleep_levels.lacking(situation, concerned):
        return []
    if any(pod.gate_open for pod in concerned):
        return []
    must_abort = not situation.is_idle and any(is_late(situation, pod) for pod in concerned)
    busy = [pod for pod in concerned if not is_drained(situation, pod)]
    if busy and not must_abort:
        return [Drain(pod) for pod in busy]
    if not concerned:
        return []
    known = {pod.name: situation.counter_when_decided(pod) for pod in concerned}
    counters = {name: counter for name, counter in known.items() if counter is not None}
    return [PutToSleep(tuple(concerned), situation.sleep_level, must_abort, counters)]


def _give_way(situation: Situation, level: SleepLevel) -> list[ReplicaAction]:
    """Return what makes replicas that sleep while others serve, or as their pool says, leave host memory to others."""
    workers = ((pod, situation.worker(pod)) for pod in situation.replicas if situation.is_spare(pod))
    asleep = ((pod, worker) for pod, worker in workers if worker and worker.state is WorkerState.ASLEEP)
    light = tuple(pod for pod, worker in asleep if worker.sleep_level < level and level in worker.sleep_levels)
    return [PutToSleep(light, level, must_abort=False)] if light else []


def _must_fall_asleep(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod's worker is awake, or not as deep asleep as ordered. In a pool, that has it sleep."""
    if pod.pool:
        return not pod.has_ended and situation.is_light(pod)
    return not pod.has_ended and (situation.state(pod) in AWAKE or situation.is_light(pod))
