"""Who has to sleep deeper, so that each node keeps to its budgets of host memory. Pure.

    awake, level 1: engine process + copy of the weights     level 2: engine process     STANDBY: neither

Two budgets. Copies of sleepers on a node keep to `max_sleeping_bytes`. And what pods take of a node keeps to a share of
its allocatable memory; a pod takes what it asks for, as the scheduler keeps that for it, or what it holds if that is
more. Pinned copies of awake workers count there and stay. While a node is short, the least valuable sleepers go, all to
level 2 before one goes to STANDBY:

    value = what its wake takes longer from there × how recently it was called = seconds / seconds without a call

as in GreedyDual (Young, 1994), so it is not how many there are that counts. A deployment goes deeper on all nodes at
once, because its replicas sleep alike. What sleeps by order counts, and stays: the order says how deep.

A worker is not believed beyond the size that its model's user states: one that errs must not evict all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import rest_bytes
from dormouse_operator.model import (
    AT_REST,
    Deployment,
    Key,
    Pod,
    Pressure,
    RecordedStatus,
    SleepLevel,
    Worker,
    WorkerState,
)
from dormouse_operator.model.units import GIB, in_gib
from dormouse_operator.model.wanted import STANDBY_LEVEL

READ_BYTES_PER_S = GIB  # of a model's files, where no wake from level 2 was measured: a usual local disk
START_S = 30.0  # of an engine, where no start was measured
_MOST_IMAGE_BYTES = GIB  # of encoded images that a sleep keeps: 8,192 tokens of the largest models
_FRONT_BYTES = GIB  # of a worker's memory without weights: what STANDBY keeps
_WITHOUT_COPIES: SleepLevel = 2
_LEVELS: tuple[SleepLevel, ...] = (_WITHOUT_COPIES, STANDBY_LEVEL)  # where somebody may be sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a pod has of its node's memory: what it asks for, and what its worker keeps there."""

    pod_uid: str = ""
    node: str
    requested_bytes: int = 0
    engine_bytes: int = 0  # of the engine process without weights
    copy_bytes: int = 0
    level: int = 0  # at which it sleeps, or is about to; 0 = awake
    is_heard: bool = True  # False: it is believed as recorded, which tells of no copies

    def copies_at(self, level: int) -> int:
        """Return how much of copies it keeps asleep once it sleeps at least so deep; those of who is awake are none."""
        return self.copy_bytes if max(self.level, level) == 1 else 0

    def taken_at(self, level: int) -> int:
        """Return what it takes once it sleeps at least so deep. Nobody who is awake is sent to sleep."""
        depth = max(self.level, level) if self.level else 0
        held = {0: self.engine_bytes + self.copy_bytes, 1: self.engine_bytes + self.copy_bytes, 2: self.engine_bytes}
        return max(self.requested_bytes, held.get(depth, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one deployment keeps in host memory."""

    key: Key
    pods: tuple[Held, ...]
    deepest: int = 0  # how deep it may be sent; 0 = it stays as it is
    reload_s: float = 0.0  # how long a wake would take without copies
    start_s: float = START_S  # and without an engine process
    called: datetime  # when it was last known to be wanted

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes whose memory it takes."""
        return frozenset(pod.node for pod in self.pods)

    def after(self, before: Holding | None) -> Holding:
        """Return the same, with the copies that were last heard of pods that are believed as recorded now."""
        known = {pod.pod_uid: pod.copy_bytes for pod in before.pods} if before else {}
        pods = (pod if pod.is_heard else replace(pod, copy_bytes=known.get(pod.pod_uid, 0)) for pod in self.pods)
        return replace(self, pods=tuple(pods))

    def value(self, level: SleepLevel, now: datetime) -> float:
        """Return what it is worth that it does not go so deep; more is worth more."""
        longer_s = self.reload_s if level == _WITHOUT_COPIES else self.start_s
        return longer_s / max(1.0, (now - self.called).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What may be kept on each node."""

    max_sleeping_bytes: int = 0  # of copies of sleepers; 0 = no limit
    max_node_percent: int = 0  # of allocatable memory, of all that pods of models take; 0 = no limit
    allocatable: Mapping[str, int] = field(default_factory=dict)  # by node, of those that are known


def holding_of(situation: Situation) -> Holding:
    """Return what a deployment keeps, as far as its workers were heard."""
    deployment, ladder = situation.deployment, situation.ladder
    heard = [(pod, worker) for pod in situation.pods if pod.node and (worker := situation.worker(pod))]
    return Holding(
        key=deployment.key,
        pods=tuple(held for pod, worker in heard for held in _held(situation, pod, worker)),
        deepest=_deepest(situation),
        reload_s=_reload_s(deployment.recorded, max((worker.host_copy_bytes for _, worker in heard), default=0)),
        start_s=_start_s(deployment.recorded),
        called=(ladder.idle_since or ladder.since) if ladder else situation.now,
    )


def _held(situation: Situation, pod: Pod, worker: Worker) -> Iterator[Held]:
    """Yield what each pod of a replica keeps; the leader's worker tells of all ranks."""
    pods = situation.group(pod).members
    copy_bytes = min(worker.host_copy_bytes, _most_copy_bytes(situation.deployment, worker.host_copy_bytes))
    has_engine = worker.state not in {WorkerState.STANDBY, WorkerState.STARTING, WorkerState.FAILED}
    engine_bytes = max(0, rest_bytes(situation.deployment) - _FRONT_BYTES) if has_engine else 0
    for one in pods:
        yield Held(
            pod_uid=one.uid,
            node=one.node,
            requested_bytes=one.memory.requested_bytes,
            engine_bytes=engine_bytes,
            copy_bytes=copy_bytes // len(pods),
            level=_level(situation, worker),
            is_heard=not worker.is_at_rest,
        )


def _level(situation: Situation, worker: Worker) -> int:
    """Return how deep a worker sleeps, or is about to: what was decided is not decided again."""
    if worker.state not in AT_REST:
        return 0
    recorded = situation.deployment.recorded.ladder
    decided = min(recorded.rung.depth, STANDBY_LEVEL) if recorded else 0
    return STANDBY_LEVEL if worker.state is WorkerState.STANDBY else max(worker.sleep_level, decided)


def _most_copy_bytes(deployment: Deployment, told_bytes: int) -> int:
    """Return how much a worker may keep of its model; what it tells where nobody said how large that is."""
    size, engine = deployment.model.size_bytes, deployment.engine
    if size is None or (engine.keep_prefix_cache and engine.kv_cache_memory_bytes is None):
        return told_bytes
    cache_bytes = engine.kv_cache_memory_bytes or 0 if engine.keep_prefix_cache else 0
    return size + cache_bytes + _MOST_IMAGE_BYTES * engine.keep_encoder_cache


def _deepest(situation: Situation) -> int:
    """Return how deep a deployment may be sent: sleepers of the ladder, spares, and whom a pool has asleep."""
    if situation.deployment.lifecycle.desired_state in {"Asleep", "Zero"}:
        return 0
    if situation.ladder is None and not situation.spares:
        return 0
    return _WITHOUT_COPIES if situation.deployment.parallelism.is_grouped else STANDBY_LEVEL


def _reload_s(recorded: RecordedStatus, num_bytes: int) -> float:
    """Return how long a wake from level 2 takes: as the last one of that kind, else by its bytes."""
    last = recorded.last_actuation
    return last.seconds if last and last.path == "level2" else num_bytes / READ_BYTES_PER_S


def _start_s(recorded: RecordedStatus) -> float:
    last = recorded.last_actuation
    return last.seconds if last and last.path in {"cold", "level3"} else START_S


def is_short(holdings: Iterable[Holding], budgets: Budgets, nodes: Iterable[str]) -> bool:
    """Return whether one of these nodes has more than it may, given all that is kept there."""
    sums = _Nodes(list(holdings), budgets)
    return any(sums.complaint(node) for node in nodes)


def relieve(
    holdings: Iterable[Holding], budgets: Budgets, *, now: datetime, begun: Mapping[Key, Pressure] | None = None
) -> dict[Key, Pressure]:
    """Return who has to sleep deeper, each with the node that is short of memory in words.

    `begun` are those that were told to: they go first, so that nobody else has to go in the meantime.
    """
    nodes = _Nodes(list(holdings), budgets)
    told: dict[Key, Pressure] = {}
    for level in _LEVELS:
        for holding in sorted(nodes.holdings, key=lambda one: _rank(one, level, begun or {}, now)):
            words = nodes.why(holding, level) if holding.deepest >= level else ""
            if words:
                nodes.send(holding, level)
                told[holding.key] = Pressure(level=level, words=words)
    return told


def _rank(holding: Holding, level: SleepLevel, begun: Mapping[Key, Pressure], now: datetime) -> tuple[bool, float, Key]:
    known = begun.get(holding.key)
    return (known is None or known.level < level, holding.value(level, now), holding.key)


class _Nodes:
    """What is taken of each node, as those that were sent deeper have left it."""

    def __init__(self, holdings: list[Holding], budgets: Budgets) -> None:
        self.holdings = holdings
        self._budgets = budgets
        self._levels = dict.fromkeys((holding.key for holding in holdings), 0)
        self._copies: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        for holding in holdings:
            self._add(holding, 0, sign=1)

    def _add(self, holding: Holding, level: int, *, sign: int) -> None:
        for pod in holding.pods:
            self._copies[pod.node] = self._copies.get(pod.node, 0) + sign * pod.copies_at(level)
            self._taken[pod.node] = self._taken.get(pod.node, 0) + sign * pod.taken_at(level)

    def send(self, holding: Holding, level: SleepLevel) -> None:
        """Count what a deployment keeps once it sleeps so deep."""
        self._add(holding, self._levels[holding.key], sign=-1)
        self._levels[holding.key] = level
        self._add(holding, level, sign=1)

    def why(self, holding: Holding, level: SleepLevel) -> str:
        """Return which node is short of memory that it would free, with the numbers; "" for none."""
        before = self._levels[holding.key]
        for pod in sorted(holding.pods, key=lambda pod: pod.node):
            if pod.copies_at(level) < pod.copies_at(before) and (words := self._too_many_copies(pod.node)):
                return words
            if pod.taken_at(level) < pod.taken_at(before) and (words := self._too_full(pod.node)):
                return words
        return ""

    def complaint(self, node: str) -> str:
        """Return of what there is too much on a node, "" for nothing."""
        return self._too_many_copies(node) or self._too_full(node)

    def _too_many_copies(self, node: str) -> str:
        most, used = self._budgets.max_sleeping_bytes, self._copies.get(node, 0)
        if not most or used <= most:
            return ""
        words = f"copies of sleeping models take {in_gib(used)} on node {node}"
        return f"{words}, maxSleepingHostBytes is {in_gib(most)}"

    def _too_full(self, node: str) -> str:
        percent, whole = self._budgets.max_node_percent, self._budgets.allocatable.get(node, 0)
        used, most = self._taken.get(node, 0), whole * percent // 100
        if not most or used <= most:
            return ""
        words = f"pods of models take {in_gib(used)} of host memory on node {node}"
        return f"{words}, maxNodeMemoryPercent {percent} of {in_gib(whole)} is {in_gib(most)}"
