"""The status as it stands on the object → the nouns of `model.recorded`. Pure."""

from __future__ import annotations

from dormouse_operator.model import (
    SLEEP_LEVELS,
    Actuation,
    Condition,
    Crash,
    KvCache,
    Ladder,
    Rank,
    RecordedCondition,
    RecordedRollout,
    RecordedStatus,
    Rung,
)
from dormouse_operator.parse.adapters import parse_recorded_adapters
from dormouse_operator.parse.values import Raw, parse_time


def parse_status(raw: Raw) -> RecordedStatus:
    """Return what the operator wrote before; {} is a status that was never written."""
    conditions = {item["type"]: parse_condition(item) for item in raw.get("conditions") or ()}
    cache, actuation, rollout = raw.get("kvCache"), raw.get("lastActuation"), raw.get("rollout")
    return RecordedStatus(
        observed_generation=raw.get("observedGeneration", 0),
        phase=raw.get("phase", ""),
        image=raw.get("image"),
        conditions=conditions,
        kv_cache=_parse_kv_cache(cache) if cache else None,
        crashes=tuple(_parse_crash(item) for item in raw.get("crashes") or ()),
        last_actuation=Actuation(**{"reason": "", "time": "", **actuation}) if actuation else None,
        rollout=RecordedRollout(rollout["revision"], parse_time(rollout.get("startTime"))) if rollout else None,
        ladder=_parse_ladder(raw.get("lifecycle")),
        pods=_parse_pods(raw),
        adapter_set=raw.get("adapterSet", ""),
        adapters=parse_recorded_adapters(raw.get("adapters") or ()),
        raw=raw,
    )


def _parse_pods(raw: Raw) -> frozenset[str] | None:
    """Return the UIDs; None where an operator of before wrote the status, which all but a rejected spec's have."""
    is_older = "pods" not in raw and "replicas" in raw
    return None if is_older else frozenset(pod["uid"] for pod in raw.get("pods") or ())


def _parse_ladder(lifecycle: Raw | None) -> Ladder | None:
    since = parse_time((lifecycle or {}).get("since"))
    if not lifecycle or since is None:
        return None
    return Ladder(
        rung=Rung(lifecycle["rung"]),
        since=since,
        reason=lifecycle.get("reason", ""),
        idle_since=parse_time(lifecycle.get("idleSince")),
        wake_intent=lifecycle.get("wakeRequestedAt", ""),
        awake=lifecycle.get("awakeReplicas"),
        present=lifecycle.get("presentReplicas"),
    )


def parse_condition(item: Raw) -> RecordedCondition:
    """Return a condition of a status."""
    condition = Condition(item["type"], item["status"], item.get("reason", ""), item.get("message", ""))
    return RecordedCondition(condition, parse_time(item.get("lastTransitionTime")))


def _parse_crash(item: Raw) -> Crash:
    return Crash(
        pod=item["pod"],
        pod_uid=item.get("podUID", ""),
        count=item.get("count", 0),
        engine_failures=item.get("engineFailures", 0),
        restarts=item.get("containerRestarts", 0),
        reason=item.get("reason", ""),
        message=item.get("message", ""),
        time=parse_time(item.get("time")),
    )


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
                devices=tuple(rank.get("devices") or ()),
                residual_bytes=rank.get("residualBytes", 0),
                limited_by=rank.get("limitedBy", ""),
                sleep_level=rank.get("sleepLevel", 0),
                sleep_levels=tuple(rank.get("sleepLevels", SLEEP_LEVELS)),
                request_counter=rank.get("requestCounter"),
            )
            for rank in cache.get("ranks") or ()
        ),
    )
