"""What the user wants: an InferenceDeployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dormouse_operator.model.recorded import RecordedStatus

DesiredState = Literal["Active", "Asleep"]


class Key(NamedTuple):
    """Where an InferenceDeployment is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model's directory is in the worker's container, and how it comes there."""

    path: str
    claim: str | None  # the PersistentVolumeClaim to mount, None for file://
    served_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How each worker computes; None leaves the choice to the worker. Sizes in bytes."""

    device: str
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    block_size: int | None = None
    swap_space_bytes: int | None = None
    enable_prefix_caching: bool = True
    load_format: str = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """When workers serve."""

    desired_state: DesiredState
    drain_timeout_s: int


Strategy = Literal["Surge", "SleepSwap"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """How another spec takes the place of the present one. A share such as "25%" is of spec.replicas."""

    strategy: Strategy = "Surge"
    max_surge: int | str = "25%"
    max_unavailable: int | str = 0
    progress_deadline_s: int = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An InferenceDeployment: the user's spec and the status that the operator wrote last."""

    key: Key
    uid: str
    generation: int
    model: ModelSource
    image: str | None  # None: the operator chooses
    replicas: int
    engine: Engine
    lifecycle: Lifecycle
    resources: Mapping[str, Any]  # Kubernetes ResourceRequirements, passed on as they are
    recorded: RecordedStatus
    rollout: Rollout = Rollout()
    is_deleting: bool = False
