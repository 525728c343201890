"""What people ask of a deployment: the resource and its pods, read once into values. Pure.

Every field may be missing: an operator that is older or newer than this command line writes another status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.names import LABEL_DEPLOYMENT, LABEL_REPLICA, LABEL_SLOT
from dormouse_api.remedies import NOTHING, REMEDIES

Raw = Mapping[str, Any]

UNTOLD = "Standby"  # the reason of a step that only an engine process could tell of
STEPS = ("Accepted", "Scheduled", "ModelLoaded", "MemoryProfiled", "BlocksAgreed", "CacheAllocated", "Ready")


@dataclass(frozen=True, slots=True)
class ConditionView:
    """One condition."""

    type: str
    status: str  # True, False, Unknown
    reason: str
    message: str
    since: str  # RFC 3339

    @property
    def remedy(self) -> str:
        """Return what a reader can do about it, "" if nothing or not known."""
        known = REMEDIES.get(self.reason, "")
        return "" if known == NOTHING else known


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank's report, as the operator recorded it."""

    rank: int
    device: str  # UUID of the GPU, "cpu" where there is none
    blocks: int | None  # held on the device
    fits: int | None  # as measured
    limited_by: str
    sleep_level: int  # 0 = awake
    residual_bytes: int | None  # held while asleep


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One pod."""

    replica: str
    pod: str
    node: str
    state: str  # Serving, Asleep, Standby, Starting, Pending, Ending, Ended, NotReady
    detail: str  # why, where there is a why
    slot: str  # of its pool, "" = it is in none
    turn: str  # what the pool says of it: Held, Granting, Yielding, Level1, Level2, Standby; "" = nothing
    memory_limit: str
    restarts: int
    ranks: tuple[RankView, ...]


@dataclass(frozen=True, slots=True)
class CrashView:
    """Engines, or the worker's container, that ended in one pod though nobody asked."""

    pod: str
    count: int  # over the pod's life
    reason: str  # of the last end, as message and time
    message: str
    time: str  # RFC 3339, "" = not known


@dataclass(frozen=True, slots=True)
class WakeView:
    """How the deployment last came to serve."""

    path: str  # cold, level1, level2
    seconds: float
    reason: str
    time: str  # RFC 3339


@dataclass(frozen=True, slots=True)
class PoolTold:
    """What a pool says of one of its members."""

    turns: Mapping[str, str] = field(default_factory=dict)  # by number of the replica, as in ReplicaView.turn
    waits_since: str = ""


NOTHING_TOLD = PoolTold()


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """One InferenceDeployment."""

    namespace: str
    name: str
    phase: str
    desired_state: str
    rung: str  # of an Auto deployment, "" while it never slept
    replicas: int  # wanted
    ready: int
    sleeping: int
    blocks: int | None
    block_size: int | None
    model: str
    url: str
    pool: str  # "" = it has its GPUs for itself
    waits_since: str  # RFC 3339: for a slot of the pool; "" = it does not
    is_current: bool  # the status is about the present spec
    last_wake: WakeView | None
    conditions: tuple[ConditionView, ...]
    pods: tuple[ReplicaView, ...]
    crashes: tuple[CrashView, ...]

    @property
    def full_name(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"

    def condition(self, type_: str) -> ConditionView | None:
        """Return the condition, None if the operator wrote none."""
        return next((one for one in self.conditions if one.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Return whether the condition holds."""
        found = self.condition(type_)
        return found is not None and found.status == "True"

    @property
    def problem(self) -> ConditionView | None:
        """Return the first step that is not done, None if all is as ordered: it says what is missing.

        What sleeps as it should is Ready, though its cache is given back.
        """
        if self.is_true("Ready"):
            return None
        steps = (self.condition(step) for step in STEPS)
        return next((one for one in steps if one and one.status != "True" and one.reason != UNTOLD), None)


def pool_of(raw: Raw) -> str:
    """Return the name of the pool that a deployment is a member of, "" if of none."""
    gpu = (raw.get("spec") or {}).get("gpu") or {}
    return str((gpu.get("pool") or {}).get("name") or "")


def read(raw: Raw, pods: Iterable[Raw] = (), told: PoolTold = NOTHING_TOLD) -> DeploymentView:
    """Return the view of a resource and those of the pods that are its own, with what its pool says of it."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    cache = status.get("kvCache") or {}
    own = [pod for pod in pods if is_pod_of(pod, metadata["namespace"], metadata["name"])]
    return DeploymentView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        phase=str(status.get("phase") or "Unknown"),
        desired_state=str((spec.get("lifecycle") or {}).get("desiredState") or "Auto"),
        rung=str((status.get("lifecycle") or {}).get("rung") or ""),
        replicas=int(spec.get("replicas", 1)),
        ready=int(status.get("readyReplicas") or 0),
        sleeping=int(status.get("sleepingReplicas") or 0),
        blocks=cache.get("numGpuBlocks"),
        block_size=cache.get("blockSize"),
        model=str((spec.get("model") or {}).get("uri") or ""),
        url=str(status.get("url") or ""),
        pool=pool_of(raw),
        waits_since=told.waits_since,
        is_current=status.get("observedGeneration") == metadata.get("generation"),
        last_wake=_read_wake(status.get("lastActuation")),
        conditions=tuple(read_condition(one) for one in status.get("conditions") or ()),
        pods=tuple(_read_pod(pod, cache.get("ranks") or (), told) for pod in sorted(own, key=_order)),
        crashes=tuple(_read_crash(one) for one in status.get("crashes") or () if one.get("count")),
    )


def is_pod_of(pod: Raw, namespace: str, deployment: str) -> bool:
    """Return whether the pod is a worker of the deployment."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    return metadata.get("namespace") == namespace and labels.get(LABEL_DEPLOYMENT) == deployment


def _order(pod: Raw) -> tuple[int, str, str]:
    label = str((pod["metadata"].get("labels") or {}).get(LABEL_REPLICA, ""))
    return (int(label) if label.isdigit() else 1 << 30, label, pod["metadata"]["name"])


def read_condition(raw: Raw) -> ConditionView:
    """Return one condition of a status."""
    names = ("type", "status", "reason", "message", "lastTransitionTime")
    return ConditionView(*(str(raw.get(name) or "") for name in names))


def _read_crash(raw: Raw) -> CrashView:
    words = {name: str(raw.get(name) or "") for name in ("pod", "reason", "message", "time")}
    return CrashView(count=int(raw["count"]), **words)


def _read_wake(raw: Raw | None) -> WakeView | None:
    if not raw:
        return None
    words = {name: str(raw.get(name) or "") for name in ("path", "reason", "time")}
    return WakeView(seconds=float(raw.get("seconds") or 0.0), **words)


def _read_pod(pod: Raw, ranks: Sequence[Raw], told: PoolTold) -> ReplicaView:
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels = metadata.get("labels") or {}
    replica, slot = str(labels.get(LABEL_REPLICA, "")), str(labels.get(LABEL_SLOT, ""))
    turn = told.turns.get(replica, "") if slot else ""
    own = tuple(_read_rank(rank) for rank in ranks if rank.get("pod") == metadata["name"])
    state, detail = _state(pod, own, turn)
    return ReplicaView(
        replica=replica,
        pod=metadata["name"],
        node=str(spec.get("nodeName") or ""),
        state=state,
        detail=detail,
        slot=slot,
        turn=turn,
        memory_limit=_memory_limit(spec),
        restarts=sum(int(one.get("restartCount") or 0) for one in status.get("containerStatuses") or ()),
        ranks=own,
    )


def _memory_limit(spec: Raw) -> str:
    worker: Raw = next((one for one in spec.get("containers") or () if one.get("name") == "worker"), {})
    return str(((worker.get("resources") or {}).get("limits") or {}).get("memory") or "")


def _read_rank(raw: Raw) -> RankView:
    return RankView(
        rank=int(raw.get("rank") or 0),
        device=str(raw.get("gpuUUID") or "cpu"),
        blocks=raw.get("allocatedGpuBlocks"),
        fits=raw.get("numGpuBlocks"),
        limited_by=str(raw.get("limitedBy") or ""),
        sleep_level=int(raw.get("sleepLevel") or 0),
        residual_bytes=raw.get("residualBytes"),
    )


def _state(pod: Raw, ranks: Sequence[RankView], turn: str) -> tuple[str, str]:
    """Return what the pod does in a word, and why where the cluster says it."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Ending", ""
    if status.get("phase") in {"Succeeded", "Failed"}:
        return "Ended", str(status.get("message") or status.get("reason") or "")
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return "Pending", str(scheduled.get("message") or "")
    if waiting := _waiting(status):
        return "Starting", waiting
    if turn == "Standby":
        return turn, ""
    if turn.startswith("Level") or any(rank.sleep_level for rank in ranks):
        return "Asleep", ""
    if (conditions.get("Ready") or {}).get("status") == "True":
        return "Serving", ""
    return "NotReady", ""


def _waiting(status: Raw) -> str:
    """Return why a container does not run yet, "" if all do."""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return ": ".join(word for word in (waiting.get("reason"), waiting.get("message")) if word) or "waiting"
    return ""
