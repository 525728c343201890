"""The operator's nouns: what was read from the cluster and from workers, frozen. Pure; parsing stands in `parse`."""

from dormouse_operator.model.observed import Observed, ServiceState
from dormouse_operator.model.recorded import (
    Actuation,
    Condition,
    KvCache,
    Rank,
    RecordedCondition,
    RecordedRollout,
    RecordedStatus,
)
from dormouse_operator.model.running import SLEEP_LEVEL, Container, Failure, Pod, Report, Worker, WorkerState
from dormouse_operator.model.wanted import (
    Deployment,
    DesiredState,
    Engine,
    Key,
    Lifecycle,
    ModelSource,
    Rollout,
    Strategy,
)

__all__ = [
    "SLEEP_LEVEL",
    "Actuation",
    "Condition",
    "Container",
    "Deployment",
    "DesiredState",
    "Engine",
    "Failure",
    "Key",
    "KvCache",
    "Lifecycle",
    "ModelSource",
    "Observed",
    "Pod",
    "Rank",
    "RecordedCondition",
    "RecordedRollout",
    "RecordedStatus",
    "Report",
    "Rollout",
    "ServiceState",
    "Strategy",
    "Worker",
    "WorkerState",
]
