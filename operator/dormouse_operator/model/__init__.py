"""The operator's nouns: what was read from the cluster and from workers, frozen. Pure; parsing stands in `parse`."""

from dormouse_operator.model.activity import Activity
from dormouse_operator.model.ladder import Ladder, Rung
from dormouse_operator.model.observed import BudgetState, Observed, ServiceState
from dormouse_operator.model.recorded import (
    Actuation,
    Condition,
    KvCache,
    Rank,
    RecordedCondition,
    RecordedRollout,
    RecordedStatus,
)
from dormouse_operator.model.running import AWAKE, WAKEABLE, Container, Failure, Pod, Report, Worker, WorkerState
from dormouse_operator.model.wanted import (
    Deployment,
    DesiredState,
    Engine,
    Hub,
    Key,
    Lifecycle,
    ModelSource,
    Placement,
    Prewarm,
    Rollout,
    Scaling,
    SecretKey,
    SleepLevel,
    Strategy,
)

__all__ = [
    "AWAKE",
    "WAKEABLE",
    "Activity",
    "Actuation",
    "BudgetState",
    "Condition",
    "Container",
    "Deployment",
    "DesiredState",
    "Engine",
    "Failure",
    "Hub",
    "Key",
    "KvCache",
    "Ladder",
    "Lifecycle",
    "ModelSource",
    "Observed",
    "Placement",
    "Pod",
    "Prewarm",
    "Rank",
    "RecordedCondition",
    "RecordedRollout",
    "RecordedStatus",
    "Report",
    "Rollout",
    "Rung",
    "Scaling",
    "SecretKey",
    "ServiceState",
    "SleepLevel",
    "Strategy",
    "Worker",
    "WorkerState",
]
