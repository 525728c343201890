"""An InferenceDeployment's mapping → the nouns of `model.wanted`. Pure. Raises only SpecError."""

from __future__ import annotations

from dormouse_operator.model import Deployment, Engine, Key, Lifecycle, ModelSource, Scaling
from dormouse_operator.parse.recorded import parse_status
from dormouse_operator.parse.values import Raw, SpecError, parse_bytes

TARGET_OUTSTANDING = 32  # per replica, where no measure is named: half of what the schema's maxNumSeqs computes at once
MODELS_ROOT = "/models"  # claims are mounted below it


def parse_deployment(raw: Raw) -> Deployment:
    """Return the InferenceDeployment. Raises SpecError where the schema was not enforced."""
    metadata, spec = raw["metadata"], raw["spec"]
    key = Key(metadata["namespace"], metadata["name"])
    lifecycle = _parse_lifecycle(spec.get("lifecycle") or {})
    return Deployment(
        key=key,
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        model=_parse_model(spec["model"], key.name),
        image=spec.get("image"),
        replicas=0 if lifecycle.desired_state == "Zero" else spec.get("replicas", 1),
        engine=_parse_engine(spec.get("engine") or {}, spec.get("lifecycle") or {}),
        lifecycle=lifecycle,
        resources=spec.get("resources") or {},
        recorded=parse_status(raw.get("status") or {}),
        is_deleting="deletionTimestamp" in metadata,
        scaling=_parse_scaling(spec.get("scaling")),
    )


def _parse_model(model: Raw, default_name: str) -> ModelSource:
    uri: str = model["uri"]
    name = model.get("name", default_name)
    if uri.startswith("file:///"):
        return ModelSource(uri.removeprefix("file://"), None, name)
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    if not uri.startswith("pvc://") or not claim:
        raise SpecError(f"spec.model.uri is {uri!r}; allowed are pvc://CLAIM/PATH and file:///PATH")
    return ModelSource("/".join(part for part in (MODELS_ROOT, claim, path) if part), claim, name)


def _parse_lifecycle(lifecycle: Raw) -> Lifecycle:
    return Lifecycle(
        desired_state=lifecycle.get("desiredState", "Auto"),
        drain_timeout_s=lifecycle.get("drainTimeoutSeconds", 60),
        sleep_level=lifecycle.get("sleepLevel", 1),
    )


def _parse_scaling(scaling: Raw | None) -> Scaling | None:
    """Return the bounds and measures, None if there are none: an empty mapping has no maximum and is refused."""
    if scaling is None:
        return None
    least, most = scaling.get("minReplicas", 1), scaling.get("maxReplicas")
    if most is None:
        raise SpecError("spec.scaling.maxReplicas is missing; it is needed where spec.scaling is set")
    if not 1 <= least <= most:
        raise SpecError(f"spec.scaling.minReplicas is {least}; allowed are 1 to spec.scaling.maxReplicas, {most}")
    outstanding, usage = scaling.get("targetOutstandingPerReplica"), scaling.get("targetKvUsage")
    if outstanding is None and usage is None:
        outstanding = TARGET_OUTSTANDING
    if outstanding is not None and outstanding < 1:
        raise SpecError(f"spec.scaling.targetOutstandingPerReplica is {outstanding}; the least is 1")
    if usage is not None and not 0 < usage <= 1:
        raise SpecError(f"spec.scaling.targetKvUsage is {usage}; allowed are numbers above 0 and at most 1")
    return Scaling(min_replicas=least, max_replicas=most, target_outstanding=outstanding, target_kv_usage=usage)


def _parse_engine(engine: Raw, lifecycle: Raw) -> Engine:
    """Return how the worker is started. What it keeps asleep is a word of the lifecycle and a flag of the worker."""

    def size(name: str) -> int | None:
        return parse_bytes(f"spec.engine.{name}", engine[name]) if name in engine else None

    return Engine(
        device=engine.get("device", "cuda"),
        dtype=engine.get("dtype", "auto"),
        max_model_len=engine.get("maxModelLen"),
        max_num_seqs=engine.get("maxNumSeqs"),
        max_num_batched_tokens=engine.get("maxNumBatchedTokens"),
        gpu_memory_utilization=engine.get("gpuMemoryUtilization"),
        kv_cache_memory_bytes=size("kvCacheMemory"),
        block_size=engine.get("blockSize"),
        swap_space_bytes=size("swapSpace"),
        enable_prefix_caching=engine.get("enablePrefixCaching", True),
        load_format=engine.get("loadFormat", "auto"),
        cuda_graphs=engine.get("cudaGraphs", True),
        keep_host_copy=lifecycle.get("keepHostCopy", True),
        keep_prefix_cache=lifecycle.get("keepPrefixCache", False),
        seed=engine.get("seed", 0),
    )
