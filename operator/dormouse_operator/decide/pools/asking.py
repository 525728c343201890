"""What each member of a pool asks for: how many replicas awake, since when it waits, what a wake costs it. Pure.

ordered Asleep or Zero   → none            ordered Active   → all, as if it was called all the time
requests held or running → one, and more as the load asks for (`awake_replicas`)
an intent or a prewarm   → one, until it was awake since
a gateway is not heard   → as many as are awake: an unknown load is not idleness
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from dormouse_operator.decide.awake_replicas import measures_of, wanted_awake
from dormouse_operator.decide.pools.waiting import count_awake
from dormouse_operator.decide.sleep_ladder import asked_at
from dormouse_operator.model import Deployment, Key, Pod, Worker, WorkerState
from dormouse_operator.model.pool_observed import Member, PoolObserved
from dormouse_operator.model.pools import Demand, Place, Replica, Slot
from dormouse_operator.parse import parse_time

_ASKED_FOR = timedelta(seconds=600)  # an intent, or a prewarm, that could not be followed for so long is forgotten
_JUST_S = 5.0  # a request that waited so lately may wait again: gateways tell of changes, and one may just be lost
START_S = 30.0  # of an engine, where no start was measured
_WAKE_S = 1.0  # of a sleeper, where no wake was measured


def demands_of(observed: PoolObserved, slots: Mapping[str, Slot]) -> dict[Key, Demand]:
    """Return what the members ask for that name the pool."""
    awake = count_awake(slots.values())
    return {
        key: _demand(observed, member, member.deployment, awake.get(key, 0))
        for key, member in observed.members.items()
        if member.deployment and member.names_pool
    }


def _demand(observed: PoolObserved, member: Member, deployment: Deployment, num_awake: int) -> Demand:
    pool, counts = observed.pool, deployment.placement.pool
    wanted = min(deployment.replicas, wanted_replicas(observed, member, deployment, num_awake))
    since = pool.waiting.get(member.key.name, observed.now) if wanted > num_awake else None
    return Demand(
        key=member.key,
        places=tuple(_place(observed, member, deployment, pod) for pod in member.pods if _can_wake(observed, pod)),
        wanted=wanted,
        waiting_since=since,
        quiet_s=member.activity.quiet_s if member.activity else 0.0,
        priority=counts.priority if counts else 0,
        weight=counts.weight if counts else 1.0,
    )


def wanted_replicas(observed: PoolObserved, member: Member, deployment: Deployment, num_awake: int) -> int:
    """Return how many replicas should be awake."""
    order, activity = deployment.lifecycle.desired_state, member.activity
    if deployment.is_deleting or order in {"Asleep", "Zero"}:
        return 0
    if order == "Active":
        return deployment.replicas
    is_running = any(worker.running_requests for worker in _answers(observed, member))
    if activity is None or not observed.gateways_heard:
        is_called = member.wanted_ago_s is not None and member.wanted_ago_s <= _JUST_S
        return max(num_awake, int(is_called or is_running))
    if activity.outstanding or activity.held or is_running:
        wanted = wanted_awake(1, deployment.replicas, measures_of(deployment), activity)
        return deployment.replicas if wanted is None else wanted
    return int(not num_awake and _is_asked(deployment, observed.now))


def _is_asked(deployment: Deployment, now: datetime) -> bool:
    """Return whether somebody who is no request wants it awake, and it has not been since."""
    asked = asked_at(deployment.lifecycle, deployment.wake_intent, now)
    last = deployment.recorded.last_actuation
    woken = parse_time(last.time) if last and last.time else None
    return asked is not None and asked > now - _ASKED_FOR and (woken is None or woken < asked)


def _answers(observed: PoolObserved, member: Member) -> list[Worker]:
    return [observed.answers[pod.uid] for pod in member.pods if pod.uid in observed.answers]


def _can_wake(observed: PoolObserved, pod: Pod) -> bool:
    """Return whether a pod is there to be woken, on a slot that is to stay."""
    is_up = pod.ip and pod.container.is_running and not (pod.is_deleting or pod.has_ended)
    return bool(is_up) and pod.uid in observed.answers and observed.stays(pod.slot)


def _place(observed: PoolObserved, member: Member, deployment: Deployment, pod: Pod) -> Place:
    worker = observed.answers[pod.uid]
    return Place(Replica(member.key, pod.index), pod.slot, _wake_s(deployment, worker), worker.last_sleep_s)


def _wake_s(deployment: Deployment, worker: Worker) -> float:
    """Return how long a wake takes, from as deep as the worker sleeps or, awake, would."""
    if worker.state is WorkerState.STANDBY:
        last = deployment.recorded.last_actuation
        return last.seconds if last and last.path in {"cold", "level3"} else START_S
    return worker.last_wake_s or _WAKE_S
