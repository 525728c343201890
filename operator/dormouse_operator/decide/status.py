"""The status that users read, from what was observed; and the smallest patch that brings it about. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from dormouse_api import short_names
from dormouse_operator.decide import adapters, canary, crashes, parking, pre_pull
from dormouse_operator.decide.block_agreement import Blocks
from dormouse_operator.decide.conditions import asleep, ready
from dormouse_operator.decide.conditions.all import Conditions
from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.phases import deployment_phase
from dormouse_operator.decide.ranks import reports_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import selector_text
from dormouse_operator.model import (
    AT_REST,
    SLEEP_LEVELS,
    Actuation,
    ActuationPath,
    Condition,
    Ladder,
    Pod,
    Rank,
    Report,
    Rung,
    WorkerState,
)
from dormouse_operator.model.wanted import STANDBY_LEVEL
from dormouse_operator.parse import format_time, parse_time

_PATHS: Mapping[int, ActuationPath] = {1: "level1", 2: "level2", 3: "level3"}
_MOST_PODS = 3000  # as the schema has it: a thousand replicas, as many of before, and as many on their way out


def build_status(situation: Situation, findings: Findings, conditions: Conditions, *, url: str) -> dict[str, Any]:
    """Return the whole status. Keys without a value are left out."""
    recorded = situation.deployment.recorded
    actuation = actuation_of(situation, findings, conditions) or recorded.last_actuation
    sleeping = [pod for pod in situation.replicas if situation.state(pod) in AT_REST]
    status = {
        "observedGeneration": situation.deployment.generation,
        "phase": str(deployment_phase(situation, findings, conditions)),
        "image": situation.image,
        "replicas": len([pod for pod in situation.pods if not (pod.is_deleting or situation.is_parked(pod))]),
        "readyReplicas": len(findings.serving),
        "sleepingReplicas": len(sleeping),
        "spareReplicas": parking.num_ready(situation) if situation.deployment.lifecycle.spares else None,
        "selector": selector_text(situation.deployment.key.name),
        "url": url or None,
        short_names.FIELD: short_names.to_status(situation.deployment.model.served_name, situation.observed.name_owner),
        "conditions": [_write_condition(situation, condition) for condition in conditions.values()],
        "rollout": _rollout(situation),
        "lifecycle": _ladder(situation.ladder),
        "kvCache": _kv_cache(situation, findings.blocks),
        "pods": _own_pods(situation),
        "prePull": pre_pull.write(situation),
        "canary": canary.write(situation),
        "adapters": adapters.write(situation),
        "adapterSet": adapters.held_set(situation),
        "crashes": [crashes.write(crash) for crash in crashes.crashes_of(situation)] or None,
        "lastActuation": _write_actuation(actuation),
    }
    return {key: value for key, value in status.items() if value is not None}


def is_woken(situation: Situation, conditions: Conditions) -> bool:
    """Return whether a wake has just been completed; a short one is not seen on its way."""
    ways = {asleep.TYPE, asleep.WAKING, asleep.WAKE_REFUSED, asleep.ENGINE_STARTS}
    was_asleep = situation.deployment.recorded.reason(asleep.TYPE) in ways
    return was_asleep and conditions[asleep.TYPE].reason == asleep.AWAKE


class Wake(NamedTuple):
    """A wake that was completed: from how deep, and how long it took."""

    level: int
    seconds: float


def wake_of(situation: Situation) -> Wake:
    """Return the wake that has just been completed. One out of STANDBY is a start, and counts from its order."""
    if situation.deployment.recorded.reason(asleep.TYPE) == asleep.ENGINE_STARTS:
        return Wake(STANDBY_LEVEL, started_seconds(situation))
    return Wake(woken_from(situation), wake_seconds(situation))


def woken_from(situation: Situation) -> int:
    """Return the deepest level from which a worker was just woken, as the recorded status tells it."""
    cache = situation.deployment.recorded.kv_cache
    woken = [rank for rank in cache.ranks if rank.pod not in situation.spares] if cache else []
    return max((rank.sleep_level for rank in woken), default=0)


def wake_seconds(situation: Situation) -> float:
    """Return how long the slowest worker that is awake took for its last wake."""
    awake = [worker for name, worker in situation.workers.items() if name not in situation.spares]
    return max((worker.last_wake_s for worker in awake), default=0.0)


def started_seconds(situation: Situation) -> float:
    """Return for how long an engine that was started out of STANDBY came to serve, since that was written."""
    recorded = situation.deployment.recorded.conditions.get(asleep.TYPE)
    began = recorded.since if recorded else None
    return (situation.now - began).total_seconds() if began else 0.0


def cold_start_seconds(situation: Situation, serving: Sequence[Pod]) -> float | None:
    """Return how long the youngest replica took from its start to now; None if none started since the last actuation.

    A pod's first start counts from its creation: scheduling and pulling the image are part of it.
    """
    last = situation.deployment.recorded.last_actuation
    told = parse_time(last.time) if last else None
    runs = [(pod, pod.container) for pod in serving]
    started = [(pod, run) for pod, run in runs if run.started and (not told or run.started > told)]
    begins = [begin for pod, run in started if (begin := run.started if run.restart_count else pod.created)]
    return max(0.0, (situation.now - max(begins)).total_seconds()) if begins else None


def actuation_of(situation: Situation, findings: Findings, conditions: Conditions) -> Actuation | None:
    """Return what brought the deployment to serve, if that is what this pass saw."""
    now = format_time(situation.now)
    if is_woken(situation, conditions):
        woken = wake_of(situation)
        path = _PATHS.get(woken.level, "level2")
        return Actuation(path, round(woken.seconds, 3), _reason_of_wake(situation), now)
    is_serving = conditions[ready.TYPE].is_true and not (situation.wants_sleep or situation.wants_no_pod)
    has_started = is_serving and not situation.deployment.recorded.is_true(ready.TYPE)
    seconds = cold_start_seconds(situation, findings.serving) if has_started else None
    reason = _reason_of_wake(situation) if is_brought_back(situation) else "started"
    return None if seconds is None else Actuation("cold", round(seconds, 3), reason, now)


def is_brought_back(situation: Situation) -> bool:
    """Return whether a request or a prewarm asked for it after it last came to serve."""
    ladder, last = situation.ladder, situation.deployment.recorded.last_actuation
    told = parse_time(last.time) if last else None
    return bool(ladder and ladder.rung is Rung.ACTIVE and told and ladder.since > told)


def _reason_of_wake(situation: Situation) -> str:
    ladder = situation.ladder
    return ladder.reason if ladder else f"desiredState is {situation.deployment.lifecycle.desired_state}"


def _write_condition(situation: Situation, condition: Condition) -> dict[str, Any]:
    """Return the condition with its times: the old one unless the status flipped."""
    before = situation.deployment.recorded.conditions.get(condition.type)
    kept = before.since if before and before.condition.status == condition.status else None
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message[:4096],
        "lastTransitionTime": format_time(kept or situation.now),
        "observedGeneration": situation.deployment.generation,
    }


def _rollout(situation: Situation) -> dict[str, Any]:
    """Return which revision is wanted, and since when: the deadline counts from there."""
    known = situation.deployment.recorded.rollout
    is_same = known is not None and known.revision == situation.revision
    since = known.since if known and is_same else None
    return {"revision": situation.revision, "startTime": format_time(since or situation.now)}


def _ladder(ladder: Ladder | None) -> dict[str, Any] | None:
    """Return where the deployment is on the ladder; it changes with the rung, and with how many should be awake."""
    if ladder is None:
        return None
    written = {
        "rung": str(ladder.rung),
        "since": format_time(ladder.since),
        "reason": ladder.reason,
        "idleSince": format_time(ladder.idle_since) if ladder.idle_since else None,
        "wakeRequestedAt": ladder.wake_intent or None,
        "awakeReplicas": ladder.awake,
        "presentReplicas": ladder.present,
    }
    return {key: value for key, value in written.items() if value is not None}


def _own_pods(situation: Situation) -> list[dict[str, Any]]:
    """Return whom gateways may give requests: what the operator made for this object. Also none is said."""
    mine = (pod for pod in situation.pods if pod.owner_uid == situation.deployment.uid)
    own = sorted(mine, key=lambda pod: (pod.is_deleting, pod.name))[:_MOST_PODS]
    roles, devices = situation.deployment.roles, situation.observed.devices
    return [_write_pod(pod, devices.get(pod.name, ()), roles.role_of(pod.index) if roles else "") for pod in own]


def _write_pod(pod: Pod, devices: Sequence[str], role: str) -> dict[str, Any]:
    held = ({"role": role} if role else {}) | ({"devices": list(devices)} if devices else {})
    return {"name": pod.name, "uid": pod.uid, "revision": pod.revision} | held


def _kv_cache(situation: Situation, blocks: Blocks) -> dict[str, Any] | None:
    """Return every report that counts beside the agreed minimum; None while there is none."""
    agreement = blocks.agreement
    if not blocks.reports:
        return None
    ranks = [_write_rank(rank) for rank in ranks_of(situation, blocks)]
    if agreement is None:
        return {"blockSize": blocks.reports[0][1].block_size, "ranks": ranks}
    return {
        "blockSize": agreement.block_size,
        "numGpuBlocks": agreement.num_gpu_blocks,
        "numCpuBlocks": agreement.num_cpu_blocks,
        "limitingRank": f"{agreement.limiting_pod}/{agreement.limiting_rank}",
        "ranks": ranks,
    }


def ranks_of(situation: Situation, blocks: Blocks) -> list[Rank]:
    """Return what each rank reported and holds. What a replica says as a whole stands at its first."""
    replicas = ((pod, reports_of(situation.workers[pod.name])) for pod, _ in blocks.reports)
    return [_rank_of(situation, pod, report, is_first=report is told[0]) for pod, told in replicas for report in told]


def _rank_of(situation: Situation, leader: Pod, report: Report, *, is_first: bool) -> Rank:
    worker, pod = situation.workers[leader.name], situation.group(leader).pod_name(report.rank)
    return Rank(
        rank=report.rank,
        pod=pod,
        num_gpu_blocks=report.num_gpu_blocks,
        num_cpu_blocks=report.num_cpu_blocks,
        allocated_gpu_blocks=situation.allocated_gpu_blocks(leader),
        gpu_uuid="" if report.device == "cpu" else report.device,
        devices=tuple(situation.observed.devices.get(pod, ())),
        residual_bytes=worker.residual_bytes if worker.state is WorkerState.ASLEEP and is_first else 0,
        limited_by=report.limited_by,
        sleep_level=worker.sleep_level,
        sleep_levels=worker.sleep_levels if is_first else SLEEP_LEVELS,
        request_counter=situation.counter_when_decided(leader) if is_first else None,
    )


def _write_rank(rank: Rank) -> dict[str, Any]:
    written = {
        "rank": rank.rank,
        "pod": rank.pod,
        "numGpuBlocks": rank.num_gpu_blocks,
        "numCpuBlocks": rank.num_cpu_blocks,
        "allocatedGpuBlocks": rank.allocated_gpu_blocks,
    }
    optional = {
        "gpuUUID": rank.gpu_uuid,
        "devices": list(rank.devices),
        "residualBytes": rank.residual_bytes,
        "sleepLevel": rank.sleep_level,
        "limitedBy": rank.limited_by,
    }
    counter = {} if rank.request_counter is None else {"requestCounter": rank.request_counter}
    claimed = {} if rank.sleep_levels == SLEEP_LEVELS else {"sleepLevels": list(rank.sleep_levels)}
    return written | {key: value for key, value in optional.items() if value} | counter | claimed


def _write_actuation(actuation: Actuation | None) -> dict[str, Any] | None:
    if actuation is None:
        return None
    return {"path": actuation.path, "seconds": actuation.seconds, "reason": actuation.reason, "time": actuation.time}


def rejected_status(words: str, *, generation: int, now: datetime, model_name: Mapping[str, str]) -> dict[str, Any]:
    """Return the status of an object whose spec cannot be read: nothing else can be told of it but its name."""
    verdicts = {"Accepted": "False", "Ready": "False", "Degraded": "True"}
    conditions = [
        {
            "type": type_,
            "status": status,
            "reason": "InvalidSpec",
            "message": words[:4096],
            "lastTransitionTime": format_time(now),
            "observedGeneration": generation,
        }
        for type_, status in verdicts.items()
    ]
    told = {"phase": "Rejected", "observedGeneration": generation, "conditions": conditions}
    return {**told, short_names.FIELD: model_name}


def status_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) from one status to another; {} if nothing differs."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if inner := status_patch(old, value):
                patch[key] = inner
        elif old != value:
            patch[key] = value
    return patch
