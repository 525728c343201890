"""An InferenceDeployment's mapping → the nouns of `model.wanted`. Pure. Raises only SpecError."""

from __future__ import annotations

from dormouse_operator.model import Deployment, Engine, Key, Lifecycle, ModelSource, Rollout
from dormouse_operator.parse.recorded import parse_status
from dormouse_operator.parse.values import Raw, SpecError, parse_bytes

MODELS_ROOT = "/models"  # claims are mounted below it


def parse_deployment(raw: Raw) -> Deployment:
    """Return the InferenceDeployment. Raises SpecError where the schema was not enforced."""
    metadata, spec = raw["metadata"], raw["spec"]
    key = Key(metadata["namespace"], metadata["name"])
    lifecycle = spec.get("lifecycle") or {}
    return Deployment(
        key=key,
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        model=_parse_model(spec["model"], key.name),
        image=spec.get("image"),
        replicas=spec.get("replicas", 1),
        engine=_parse_engine(spec.get("engine") or {}),
        lifecycle=Lifecycle(lifecycle.get("desiredState", "Active"), lifecycle.get("drainTimeoutSeconds", 60)),
        resources=spec.get("resources") or {},
        rollout=_parse_rollout(spec.get("rollout") or {}),
        recorded=parse_status(raw.get("status") or {}),
        is_deleting="deletionTimestamp" in metadata,
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


def _parse_rollout(rollout: Raw) -> Rollout:
    """Return the limits of a roll-out. At least one of them has to leave room for a step."""
    parsed = Rollout(
        strategy=rollout.get("strategy", "Surge"),
        max_surge=_parse_share("maxSurge", rollout.get("maxSurge", "25%")),
        max_unavailable=_parse_share("maxUnavailable", rollout.get("maxUnavailable", 0)),
        progress_deadline_s=rollout.get("progressDeadlineSeconds", 1800),
    )
    nothing = {0, "0%"}
    if parsed.strategy == "Surge" and parsed.max_surge in nothing and parsed.max_unavailable in nothing:
        raise SpecError("spec.rollout.maxSurge and spec.rollout.maxUnavailable are both 0; at least one has to be more")
    return parsed


def _parse_share(name: str, value: int | str) -> int | str:
    """Return a number of pods, or a share of them such as 25%."""
    text = str(value)
    digits = text.removesuffix("%") if isinstance(value, str) else text
    if not digits.isdecimal() or (text.endswith("%") and int(digits) > 100):
        raise SpecError(f"spec.rollout.{name} is {value!r}; allowed are 0, 1, … or 0% to 100%")
    return f"{int(digits)}%" if text.endswith("%") else int(digits)


def _parse_engine(engine: Raw) -> Engine:
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
        seed=engine.get("seed", 0),
    )
