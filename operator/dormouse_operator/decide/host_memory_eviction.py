"""Which deployments have to give up their copies in host memory, so that each node keeps to its budget. Pure.

A worker asleep at level 1 keeps a copy of its weights in host memory; at level 2 it keeps none, and reads the files of
its model when it wakes. While the copies on a node take more than they may, the least valuable go:

    value = cost of a wake without the copy × how recently it was called = seconds of a reload / seconds without a call

as in GreedyDual (Young, 1994), so it is not how many there are that counts. A deployment gives up its copies on all
nodes at once, because its replicas sleep alike. What sleeps by order counts, and stays: the order says how deep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Key, RecordedStatus, Rung, WorkerState
from dormouse_operator.model.units import GIB, in_gib

READ_BYTES_PER_S = GIB  # of a model's files, where no wake from level 2 was measured: a usual local disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What one deployment keeps in host memory while it sleeps."""

    key: Key
    bytes_by_node: Mapping[str, int]
    reload_s: float  # how long a wake would take without
    called: datetime  # when it was last known to be wanted
    may_go: bool  # False: its order says that they stay

    def value(self, now: datetime) -> float:
        """Return what the copies are worth; more is worth more."""
        return self.reload_s / max(1.0, (now - self.called).total_seconds())


def copies_of(situation: Situation) -> Copies | None:
    """Return what a deployment keeps, None if that is nothing, or it was decided already that it goes."""
    ladder, recorded = situation.ladder, situation.deployment.recorded
    if recorded.ladder and recorded.ladder.rung.depth > Rung.LEVEL1.depth:
        return None
    bytes_by_node: Counter[str] = Counter()
    for pod in situation.pods:
        worker = situation.worker(pod)
        if worker and worker.state is WorkerState.ASLEEP and worker.sleep_level == 1:
            bytes_by_node[pod.node] += worker.host_copy_bytes
    if not bytes_by_node.total():
        return None
    return Copies(
        key=situation.deployment.key,
        bytes_by_node=bytes_by_node,
        reload_s=_reload_s(recorded, max(worker.host_copy_bytes for worker in situation.workers.values())),
        called=(ladder.idle_since or ladder.since) if ladder else situation.now,
        may_go=ladder is not None,
    )


def _reload_s(recorded: RecordedStatus, num_bytes: int) -> float:
    """Return how long a wake from level 2 takes: as the last one of that kind, else by its bytes."""
    last = recorded.last_actuation
    return last.seconds if last and last.path == "level2" else num_bytes / READ_BYTES_PER_S


def evictions(
    copies: Iterable[Copies], *, limit_bytes: int, now: datetime, begun: Collection[Key] = ()
) -> dict[Key, str]:
    """Return whose copies have to go, each with the node that is short of memory in words.

    `begun` are those that were told to: they go first, so that nobody else has to go in the meantime.
    """
    all_copies = list(copies)
    used = sum((Counter(found.bytes_by_node) for found in all_copies), Counter[str]())
    evicted: dict[Key, str] = {}
    for found in sorted(all_copies, key=lambda found: (found.key not in begun, found.value(now), found.key)):
        full = [node for node, size in sorted(found.bytes_by_node.items()) if size and used[node] > limit_bytes]
        if full and found.may_go:
            evicted[found.key] = _words(full[0], used[full[0]], limit_bytes)
            used.subtract(found.bytes_by_node)
    return evicted


def _words(node: str, used_bytes: int, limit_bytes: int) -> str:
    words = f"copies of sleeping models take {in_gib(used_bytes)} on node {node}"
    return f"{words}, maxSleepingHostBytes is {in_gib(limit_bytes)}"
