"""What the operator wrote last: the status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from dormouse_operator.model.adapters import RecordedAdapter
from dormouse_operator.model.ladder import SLEEP_LEVELS, Ladder, SleepLevel

ActuationPath = Literal["cold", "level3", "level2", "level1"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. Without time and generation, which the status writer adds."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    is_failure: bool = False  # False for a reason that time alone does not cure; not written to the status

    @property
    def is_true(self) -> bool:
        """Return whether it holds."""
        return self.status == "True"


@dataclass(frozen=True, slots=True)
class RecordedCondition:
    """A condition as it stands in the status."""

    condition: Condition
    since: datetime | None  # last flip of its status


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's report as it stands in the status."""

    rank: int
    pod: str
    num_gpu_blocks: int
    num_cpu_blocks: int
    allocated_gpu_blocks: int
    gpu_uuid: str = ""
    devices: tuple[str, ...] = ()  # of its pod, DRIVER/POOL/DEVICE; () where it has none by claim
    residual_bytes: int = 0
    limited_by: str = ""
    sleep_level: int = 0  # 0 = awake
    sleep_levels: tuple[SleepLevel, ...] = SLEEP_LEVELS  # that its worker claims; stands at a replica's first rank
    request_counter: int | None = None  # of a worker that is to fall asleep: as it was when that was decided


@dataclass(frozen=True, slots=True)
class KvCache:
    """What the ranks reported and what they agreed on."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    limiting_rank: str  # "" while nothing is agreed
    ranks: tuple[Rank, ...]

    @property
    def is_agreed(self) -> bool:
        """Return whether a count is agreed; 0 is one, of models that keep no cache."""
        return self.num_gpu_blocks > 0 or bool(self.limiting_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How often an engine or a worker's container ended though nobody asked, and the last time."""

    pod: str
    pod_uid: str
    count: int  # over the pod's life
    engine_failures: int = 0  # as the worker told last
    restarts: int = 0  # of the container, as the kubelet told last
    reason: str = ""
    message: str = ""
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Actuation:
    """How the deployment last came to serve."""

    path: ActuationPath
    seconds: float
    reason: str
    time: str  # RFC 3339


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """The roll-out that the status is about."""

    revision: str
    since: datetime | None  # when this revision was wanted first


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStatus:
    """The status as it was read. `raw` is kept to know whether a new one differs."""

    observed_generation: int = 0
    phase: str = ""
    image: str | None = None
    conditions: Mapping[str, RecordedCondition] = field(default_factory=dict)
    kv_cache: KvCache | None = None
    crashes: tuple[Crash, ...] = ()
    last_actuation: Actuation | None = None
    rollout: RecordedRollout | None = None
    ladder: Ladder | None = None
    pods: frozenset[str] | None = None  # UIDs of those that the operator made; None = an older one did not write it
    adapters: tuple[RecordedAdapter, ...] = ()
    adapter_set: str = ""  # what the adapters are called that every replica awake held; "" = one did not
    raw: Mapping[str, Any] = field(default_factory=dict)

    def is_true(self, condition: str) -> bool:
        """Return whether a condition was True."""
        found = self.conditions.get(condition)
        return found is not None and found.condition.is_true

    def reason(self, condition: str) -> str:
        """Return a condition's reason, "" if it was never written."""
        found = self.conditions.get(condition)
        return found.condition.reason if found else ""

    def rank_of(self, pod: str) -> Rank | None:
        """Return what was recorded of a pod."""
        ranks = self.kv_cache.ranks if self.kv_cache else ()
        return next((rank for rank in ranks if rank.pod == pod), None)
