"""Turns Kubernetes' mappings into the operator's nouns, once, at the edge. Pure. Raises only SpecError."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from dormouse_api.names import LABEL_REPLICA, LABEL_REVISION, READINESS_GATE
from dormouse_operator.model import (
    Actuation,
    Condition,
    Container,
    Deployment,
    Engine,
    Key,
    KvCache,
    Lifecycle,
    ModelSource,
    Pod,
    Rank,
    RecordedCondition,
    RecordedStatus,
)

Raw = Mapping[str, Any]

CONTAINER = "worker"
MODELS_ROOT = "/models"  # claims are mounted below it
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(rf"(?P<number>[0-9]+(\.[0-9]+)?)(?P<suffix>{'|'.join(_FACTORS)})")


class SpecError(ValueError):
    """The spec says something that no schema of ours would have let pass; the message names field and value."""


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
        recorded=parse_status(raw.get("status") or {}),
        is_deleting="deletionTimestamp" in metadata,
    )


def parse_bytes(field: str, value: str | int) -> int:
    """Return the bytes of a quantity such as 1.5Gi. Raises SpecError."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise SpecError(f"{field} is {value!r}; allowed are bytes or a number with k, Ki, M, Mi, G, Gi, T or Ti")
    return int(Decimal(match["number"]) * _FACTORS[match["suffix"]])


def _parse_model(model: Raw, default_name: str) -> ModelSource:
    uri: str = model["uri"]
    name = model.get("name", default_name)
    if uri.startswith("file:///"):
        return ModelSource(uri.removeprefix("file://"), None, name)
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    if not uri.startswith("pvc://") or not claim:
        raise SpecError(f"spec.model.uri is {uri!r}; allowed are pvc://CLAIM/PATH and file:///PATH")
    return ModelSource("/".join(part for part in (MODELS_ROOT, claim, path) if part), claim, name)


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


def parse_status(raw: Raw) -> RecordedStatus:
    """Return what the operator wrote before; {} is a status that was never written."""
    conditions = {item["type"]: _parse_condition(item) for item in raw.get("conditions") or ()}
    cache, actuation = raw.get("kvCache"), raw.get("lastActuation")
    return RecordedStatus(
        observed_generation=raw.get("observedGeneration", 0),
        phase=raw.get("phase", ""),
        image=raw.get("image"),
        conditions=conditions,
        kv_cache=_parse_kv_cache(cache) if cache else None,
        last_actuation=Actuation(**{"reason": "", "time": "", **actuation}) if actuation else None,
        raw=raw,
    )


def _parse_condition(item: Raw) -> RecordedCondition:
    condition = Condition(item["type"], item["status"], item.get("reason", ""), item.get("message", ""))
    return RecordedCondition(condition, parse_time(item.get("lastTransitionTime")))


def _parse_kv_cache(cache: Raw) -> KvCache:
    return KvCache(
        block_size=cache.get("blockSize", 0),
        num_gpu_blocks=cache.get("numGpuBlocks", 0),
        num_cpu_blocks=cache.get("numCpuBlocks", 0),
        limiting_rank=cache.get("limitingRank", ""),
        ranks=tuple(
            Rank(
                rank=rank["rank"],
                pod=rank["pod"],
                num_gpu_blocks=rank.get("numGpuBlocks", 0),
                num_cpu_blocks=rank.get("numCpuBlocks", 0),
                allocated_gpu_blocks=rank.get("allocatedGpuBlocks", 0),
                gpu_uuid=rank.get("gpuUUID", ""),
                residual_bytes=rank.get("residualBytes", 0),
                limited_by=rank.get("limitedBy", ""),
            )
            for rank in cache.get("ranks") or ()
        ),
    )


def parse_pod(raw: Raw) -> Pod:
    """Return a worker pod. Labels of ours that are missing or odd make it a pod that nobody wants (index -1)."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    index = labels.get(LABEL_REPLICA, "")
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    scheduled, gate = conditions.get("PodScheduled", {}), conditions.get(READINESS_GATE, {})
    is_scheduled = scheduled.get("status") == "True"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        index=int(index) if index.isdecimal() else -1,
        revision=labels.get(LABEL_REVISION, ""),
        owner_uid=next(
            (owner["uid"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")), ""
        ),
        created=parse_time(metadata.get("creationTimestamp")),
        ip=status.get("podIP", ""),
        is_scheduled=is_scheduled,
        unscheduled_message="" if is_scheduled else scheduled.get("message", ""),
        has_ended=status.get("phase") in {"Failed", "Succeeded"},
        end_message=status.get("message", "") or status.get("reason", ""),
        is_deleting="deletionTimestamp" in metadata,
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        gate_open=gate.get("status") == "True",
        gate_reason=gate.get("reason", ""),
        gate_since=parse_time(gate.get("lastTransitionTime")),
        container=_parse_container(status.get("containerStatuses") or ()),
    )


def _parse_container(statuses: Iterable[Raw]) -> Container:
    status = next((item for item in statuses if item["name"] == CONTAINER), None)
    if status is None:
        return Container()
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    end = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    return Container(
        is_running="running" in state,
        is_ready=status.get("ready", False),
        restart_count=status.get("restartCount", 0),
        started=parse_time((state.get("running") or {}).get("startedAt")),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        exit_code=end.get("exitCode"),
        exit_reason=end.get("reason", ""),
        exit_message=end.get("message", "").strip(),
    )


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the API server, None for none."""
    return datetime.fromisoformat(text) if text else None


def format_time(time: datetime) -> str:
    """Return a time as the API server writes it, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
