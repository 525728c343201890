"""Which compute resources a worker asks for: the user's, a GPU for each rank or claims, memory. Pure.

What the worker keeps in memory (decision 0010):

    on a GPU:    weights (the pinned copy) + adapters' copies + swapSpace + the rest of both processes
    on the CPU:  (weights + adapters' copies and slots + cache + swapSpace + the rest) / gpuMemoryUtilization
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dormouse_operator.manifests.common import Manifest
from dormouse_operator.model import Deployment, Engine
from dormouse_operator.model.units import GIB, MIB

_CPU_REST_BYTES = 2 * GIB  # interpreter and libraries of front and engine, activations of the largest batch
_GPU_REST_BYTES = 4 * GIB  # the same with a CUDA context, staging buffers and what may be filled of /dev/shm
_SPARE_BYTES = 512 * MIB  # what an engine process has imported
_DEFAULT_CACHE_BYTES = GIB  # as the worker's own default on the CPU
_DEFAULT_UTILIZATION = 0.9  # as the schema's
_DEFAULT_LORA_RANK = 16  # as the schema's
_ADAPTER_SHARE = 2.0  # of models from 100 million to 70 billion weights, of 2 bytes: 0.9 to 1.5


def resources_of(deployment: Deployment) -> Manifest:
    """Return the container's resources. Whatever spec.resources says stays as it is."""
    given: Mapping[str, Mapping[str, Any]] = deployment.resources
    limits, requests = (dict(given.get(name) or {}) for name in ("limits", "requests"))
    gpu = deployment.placement.gpu_resource
    if gpu is not None and gpu not in limits:
        limits[gpu] = requests.get(gpu, deployment.parallelism.tensor)  # nosec B113  # a mapping
    if "memory" not in limits and "memory" not in requests and (memory := memory_bytes(deployment)):
        limits["memory"] = requests["memory"] = f"{math.ceil(memory / MIB)}Mi"
    named = {"limits": limits, "requests": requests, "claims": _claims(deployment)}
    return {**given, **{name: values for name, values in named.items() if values}}


def _claims(deployment: Deployment) -> list[Manifest]:
    """Return of which of the pod's claims the container has devices."""
    claims = deployment.placement.claims
    return [{"name": claim.name, **({"request": claim.request} if claim.request else {})} for claim in claims]


def claims_complaint(deployment: Deployment, wanted_replicas: int) -> str:
    """Return why these claims cannot be; "" where nothing speaks against them. Devices of one claim are one pod's."""
    shared = next((claim for claim in deployment.placement.claims if claim.claim), None)
    if shared is None:
        return ""
    words = f"spec.gpu.claims[{shared.name}].resourceClaimName {shared.claim} is one pod's devices"
    cure = "use resourceClaimTemplateName, with which each pod has its own"
    most = max(wanted_replicas, deployment.scaling.max_replicas if deployment.scaling else 0)
    if most > 1:
        return f"{words}, and there may be {most} replicas; {cure}"
    if deployment.parallelism.pipeline > 1:
        return f"{words}, and spec.parallelism.pipeline is {deployment.parallelism.pipeline}; {cure}"
    if deployment.rollout.strategy == "Surge" and deployment.rollout.max_surge not in {0, "0%"}:
        order = "set spec.rollout.maxSurge to 0 and spec.rollout.maxUnavailable to 1"
        return f"{words}, and a roll-out would put a second pod beside it; {order}, or {cure}"
    return ""


def rest_bytes(deployment: Deployment) -> int:
    """Return what front and engine processes take without weights and cache."""
    rest = _CPU_REST_BYTES if deployment.engine.device == "cpu" else _GPU_REST_BYTES
    return rest + _SPARE_BYTES if deployment.lifecycle.spare_engine else rest


def adapter_bytes(engine: Engine, size_bytes: int) -> int:
    """Return about what all adapters take of host memory, rather too much, beside weights of this size.

    A rank's unit is one number for each input and output of the linear layers. Of P weights these have c · P^(2/3):
    layers are as wide as the root of their weights, and wide models have more of them.
    """
    if not engine.enable_lora:
        return 0
    slot = _ADAPTER_SHARE * (engine.max_lora_rank or _DEFAULT_LORA_RANK) * math.pow(size_bytes, 2 / 3)
    return round(slot * (engine.adapter_copies + (engine.adapter_slots if engine.device == "cpu" else 0)))


def memory_bytes(deployment: Deployment) -> int | None:
    """Return the memory that a worker needs, None where nobody said how large the model is."""
    engine, size = deployment.engine, deployment.model.size_bytes
    if size is None:
        return None
    needed = size + adapter_bytes(engine, size) + (engine.swap_space_bytes or 0) + rest_bytes(deployment)
    if engine.device != "cpu":
        return needed
    needed += engine.kv_cache_memory_bytes or _DEFAULT_CACHE_BYTES
    return math.ceil(needed / (engine.gpu_memory_utilization or _DEFAULT_UTILIZATION))
