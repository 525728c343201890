"""Which pods take no command, nor ever will: other ones take their place. Pure.

A worker knows the operator by the public key that it was started with, which stands in its pod; the operator has the
present key and the one before. And an epoch fences commands: a worker that has seen one above every leader's obeys
nobody. Epochs are counted from the seconds since `COUNTED_FROM`, and rise by one with each change of hands, which takes
longer than a second. What a worker says raises ours, but never beyond what the clock allows: a worker that always says
a little more would else lead us, step by step, out of the lease's numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from dormouse_api.limits import MAX_EPOCH
from dormouse_operator.model import Condemnation, Pod, Worker

COUNTED_FROM = datetime(2025, 1, 1, tzinfo=UTC)  # seconds since then fit the lease's 32 bits until 2093
CREDENTIAL_REFUSED = "CredentialRefused"
EPOCH_IMPOSSIBLE = "EpochImpossible"
_SPARE = 86_400  # how far clocks of leaders may have been apart, in seconds


def first_epoch(now: datetime) -> int:
    """Return an epoch that no earlier lease came to: workers may remember that of one that was deleted."""
    return int((now - COUNTED_FROM).total_seconds())


def by_key(pods: Iterable[Pod], keys: Collection[str]) -> dict[str, Condemnation]:
    """Return which pods know the operator by none of its keys, by name. Without keys nobody is looked at."""
    return {pod.name: _unknowing(pod) for pod in pods if keys and pod.operator_key not in keys}


def by_epoch(answers: Mapping[str, Worker], *, now: datetime, epoch: int) -> dict[str, Condemnation]:
    """Return whose workers, by name of the pod, say an epoch that nobody had. `epoch` is our own."""
    others = first_epoch(now) + _SPARE - 1  # ours becomes greater by one than what a worker says
    possible = min(MAX_EPOCH - 1, max(epoch, others))
    return {name: _impossible(name, worker) for name, worker in answers.items() if worker.epoch > possible}


def outdated_images(pods: Iterable[Pod], refusing: Collection[str], keys: Collection[str]) -> frozenset[str]:
    """Return images that do not know how the operator proves itself: they are older than that, or refuse its proof."""
    return frozenset(pod.image for pod in pods if keys and (not pod.operator_key or pod.name in refusing))


def _unknowing(pod: Pod) -> Condemnation:
    since = "two rotations of the seeds" if pod.operator_key else "this release"
    words = f"pod {pod.name} was made before {since}, and its worker cannot know this operator"
    return Condemnation(CREDENTIAL_REFUSED, f"{words}; another pod takes its place")


def _impossible(name: str, worker: Worker) -> Condemnation:
    words = f"pod {name}: its worker was given the epoch {worker.epoch}, which no operator has had"
    return Condemnation(EPOCH_IMPOSSIBLE, f"{words}, and obeys none since; another pod takes its place")
