"""What speaks for a rung of the sleep ladder: what the object, gateways and workers tell of the demand. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dormouse_operator.decide.awake_replicas import measures_of
from dormouse_operator.model import (
    AWAKE,
    Activity,
    Deployment,
    Ladder,
    Lifecycle,
    Pod,
    RecordedStatus,
    Rung,
    Scaling,
    Turn,
    Worker,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What speaks for a rung."""

    now: datetime
    lifecycle: Lifecycle
    ladder: Ladder | None  # as recorded; None = it was never woken and never slept
    serving_since: datetime | None  # None = it does not serve, or never was Ready
    activity: Activity | None  # None = not known
    wanted_ago_s: float | None = None  # since a request last waited for it to wake at any gateway; None = none did
    is_stirred: bool = False  # a worker runs a request, or took one in since it was to sleep
    wake_intent: str = ""  # the annotation, as it is
    replicas: int = 1  # of the spec
    num_places: int = 0  # up to the highest replica that has a pod and is none to be parked
    measures: Scaling = field(default_factory=lambda: Scaling(max_replicas=1))  # what asks for more of them
    turn: Turn | None = None  # on a GPU that others have, too
    pressed_to: int = 0  # at least so deep it has to sleep, as a node's host memory is short
    unclaimed: frozenset[Rung] = frozenset()  # rungs that its workers cannot be on


def gather(
    deployment: Deployment,
    activity: Activity | None,
    now: datetime,
    *,
    pods: Sequence[Pod] = (),
    pressed_to: int = 0,
    turn: Turn | None = None,
    wanted_ago_s: float | None = None,
) -> Evidence:
    """Return what the object and the gateways tell; what workers tell comes later, as they are asked on demand."""
    there = [pod for pod in pods if pod.owner_uid == deployment.uid and not (pod.is_deleting or pod.has_ended)]
    return Evidence(
        now=now,
        lifecycle=deployment.lifecycle,
        ladder=deployment.recorded.ladder,
        serving_since=_serving_since(deployment.recorded),
        activity=activity,
        wanted_ago_s=wanted_ago_s,
        wake_intent=deployment.wake_intent,
        replicas=deployment.replicas,
        num_places=max((pod.index + 1 for pod in there if pod.index >= deployment.lifecycle.spares), default=0),
        measures=measures_of(deployment),
        pressed_to=pressed_to,
        turn=turn,
    )


def has_new_requests(recorded: RecordedStatus, workers: Mapping[str, Worker]) -> bool:
    """Return whether an awake worker, by pod name, runs a request or took one in since it was to fall asleep."""
    return any(
        worker.running_requests > 0 or _has_moved(recorded, name, worker)
        for name, worker in workers.items()
        if worker.state in AWAKE
    )


def _has_moved(recorded: RecordedStatus, pod: str, worker: Worker) -> bool:
    rank = recorded.rank_of(pod)
    known = rank.request_counter if rank else None
    return known is not None and worker.request_counter != known


def _serving_since(recorded: RecordedStatus) -> datetime | None:
    """Return since when a replica serves. One that was never on the ladder has to be Ready, too: a start is no rest."""
    needed = ["Available"] if recorded.ladder else ["Available", "Ready"]
    times = [found.since for name in needed if (found := recorded.conditions.get(name)) and found.condition.is_true]
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(needed) else None
