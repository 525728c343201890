"""What the user wants: an InferenceDeployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from dormouse_operator.model.adapters import Adapter
from dormouse_operator.model.canary import Canary
from dormouse_operator.model.ladder import SleepLevel
from dormouse_operator.model.recorded import RecordedStatus
from dormouse_operator.model.roles import Roles
from dormouse_operator.model.serving import OWN_GATEWAYS, Serving
from dormouse_operator.model.sources import ModelSource, PrePull, SecretKey

DesiredState = Literal["Auto", "Active", "Asleep", "Zero"]
MOST_ADAPTERS: Final = 1024  # of a deployment, as the status lists them
STANDBY_LEVEL: Final = 3  # the deepest: no engine process, nothing on the device


class Key(NamedTuple):
    """Where an InferenceDeployment is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"


class PoolKey(NamedTuple):
    """Where a GpuPool is. It equals no `Key`, whatever their names."""

    namespace: str
    name: str
    kind: Literal["GpuPool"] = "GpuPool"

    def __str__(self) -> str:
        """Return GpuPool namespace/name."""
        return f"{self.kind} {self.namespace}/{self.name}"


class AdaptersKey(NamedTuple):
    """The InferenceAdapters that name one base, which need not be there. It equals no other key."""

    namespace: str
    name: str  # of the base
    kind: Literal["InferenceAdapter"] = "InferenceAdapter"

    def __str__(self) -> str:
        """Return whose they are."""
        return f"{self.kind}s of {self.namespace}/{self.name}"


AnyKey = Key | PoolKey | AdaptersKey  # of what is watched, looked at and decided about


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """A ResourceClaim through which a worker's pod gets devices: one that exists, or each pod's own of a template."""

    name: str  # within the pod
    claim: str = ""  # name of the ResourceClaim, "" where there is a template
    template: str = ""  # name of the ResourceClaimTemplate, "" where there is a claim
    request: str = ""  # of the claim's requests the one that the worker uses; "" = all


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """The GpuPool of the deployment's namespace whose slots its replicas are on, and what it counts for there."""

    name: str
    priority: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a worker's pod asks of a node beside its resources."""

    gpu_resource: str | None = None  # extended resource of which each rank gets one; None on cpu, with claims or a pool
    claims: tuple[DeviceClaim, ...] = ()  # on cuda, in place of an extended resource
    pool: PoolMember | None = None  # on cuda, in place of both
    template: Mapping[str, Any] = field(default_factory=dict)  # the user's PodTemplateSpec, merged over ours


@dataclass(frozen=True, slots=True)
class KvStore:
    """Where each worker keeps cached prefixes on disk."""

    size_bytes: int
    claim: str = ""  # the claim to mount; "" = a volume that goes with the pod
    secret: SecretKey | None = None  # encrypts what is kept; None = it is not encrypted


OWN_RUNTIME, VLLM = "dormouse", "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How each worker computes; None leaves the choice to the worker. Sizes in bytes.

    A test compares defaults, schema and pod arguments with the worker's own settings.
    """

    runtime: str = OWN_RUNTIME  # whose engine it is
    device: str = "cuda"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    prefault_kv_cache: bool = False
    block_size: int | None = None
    swap_space_bytes: int | None = None
    enable_prefix_caching: bool = True
    load_format: str = "auto"
    cuda_graphs: bool = True
    compile_sizes: tuple[int, ...] = ()
    async_scheduling: bool = True
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    quantization: str = "none"
    speculation_method: str = "off"
    speculation_model: str = ""  # where the draft model's directory is in the worker's container; "" = there is none
    speculation_claim: str | None = None  # the claim to mount for it
    num_speculative_tokens: int = 8
    keep_host_copy: bool = True
    keep_prefix_cache: bool = False
    keep_encoder_cache: bool = False
    seed: int = 0
    task: str = "auto"
    enable_lora: bool = False
    max_loras: int | None = None
    max_lora_rank: int | None = None
    max_cpu_loras: int | None = None
    kv_store: KvStore | None = None

    @property
    def adapter_slots(self) -> int:
        """Return how many adapters lie on the device at most."""
        return self.max_loras or 1  # as the worker's settings say

    @property
    def adapter_places(self) -> int:
        """Return how many adapters there can be."""
        return min(self.adapter_copies, MOST_ADAPTERS)

    @property
    def adapter_copies(self) -> int:
        """Return how many adapters each replica has room for in host memory."""
        return self.max_cpu_loras or self.adapter_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many ranks share one replica's model: `pipeline` pods with `tensor` ranks each."""

    tensor: int = 1  # ranks that share every layer; each has a GPU of the pod
    pipeline: int = 1  # stages that share the layers; each is a pod
    topology_key: str = ""  # node label that all pods of a group have alike; "" = any nodes
    scheduling_deadline_s: int = 600  # for all pods of a group to get a node

    @property
    def num_ranks(self) -> int:
        """Return how many ranks a replica has."""
        return self.tensor * self.pipeline

    @property
    def is_grouped(self) -> bool:
        """Return whether a replica is several pods."""
        return self.pipeline > 1


@dataclass(frozen=True, slots=True)
class Prewarm:
    """A repeated time at which a deployment that sleeps by the ladder is woken."""

    cron: str  # five fields
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """When workers serve. The delays count from the last request, each is above the one before; None = never."""

    desired_state: DesiredState
    drain_timeout_s: int
    sleep_level: SleepLevel = 1  # how deep the order Asleep is
    level1_after_s: int | None = None
    level2_after_s: int | None = None
    level3_after_s: int | None = None
    zero_after_s: int | None = None
    min_active_s: int = 60
    prewarm: tuple[Prewarm, ...] = ()
    shrinks_requests: bool = False  # pods ask for less memory while they sleep without weights
    spare_engine: bool = False  # keep an engine process that has imported its libraries
    spares: int = 0  # so many of the replicas that nobody asks for have a pod that waits in STANDBY


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Between which bounds, and by which measures, the operator chooses `replicas`."""

    min_replicas: int = 1
    max_replicas: int
    target_outstanding: int | None = None  # requests per replica; None = not a measure
    target_kv_usage: float | None = None  # 0 to 1; None = not a measure


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
    replicas: int  # of the spec; 0 where its order is to have no pod
    engine: Engine
    lifecycle: Lifecycle
    resources: Mapping[str, Any]  # Kubernetes ResourceRequirements, which win over what we derive
    recorded: RecordedStatus
    placement: Placement = Placement()
    parallelism: Parallelism = Parallelism()
    rollout: Rollout = Rollout()
    is_deleting: bool = False
    scaling: Scaling | None = None  # None: others write `replicas`
    mutual_tls: bool = False  # the operator's setting, not the user's: workers prove themselves by certificates
    adapters: tuple[Adapter, ...] = ()  # by name; once `adapter_sets.merge` saw them, those of InferenceAdapters, too
    serving: Serving = OWN_GATEWAYS
    adapter_claims: tuple[str, ...] = ()  # that InferenceAdapters may lie in, beside those of its own adapters
    adapter_secrets: tuple[str, ...] = ()  # with tokens that InferenceAdapters may name, as those of its own adapters
    roles: Roles | None = None  # None: all replicas do the same
    canary: Canary | None = None  # it takes a share of another one's requests
    pre_pull: PrePull | None = None  # None: a node fetches the model when a worker starts there
    replica_writers: tuple[str, ...] = ()  # field managers of spec.replicas: who wrote them last
    wake_intent: str = ""  # what gateways wrote last to have it woken, as it is; "" = nothing
