"""For tests: what one reconcile may meet, with valid defaults, so that a test states only what matters."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_operator.decide.release import Release
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import (
    AWAKE,
    Condition,
    Container,
    Deployment,
    Engine,
    Key,
    KvCache,
    Lifecycle,
    ModelSource,
    Observed,
    Pod,
    Rank,
    RecordedCondition,
    RecordedStatus,
    Report,
    Worker,
    WorkerState,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REVISION = "abcd1234"
_OBSERVED = {field.name for field in fields(Observed)} - {field.name for field in fields(Situation)}


def a_deployment(**fields: Any) -> Deployment:
    """Return a deployment of one replica that serves."""
    defaults: dict[str, Any] = {
        "key": Key("team", "tiny"),
        "uid": "uid-tiny",
        "generation": 1,
        "model": ModelSource("/models/tiny", None, "tiny"),
        "image": None,
        "replicas": 1,
        "engine": Engine(device="cpu"),
        "lifecycle": Lifecycle("Auto", 60),
        "resources": {},
        "recorded": RecordedStatus(),
    }
    return Deployment(**(defaults | fields))


def a_pod(index: int = 0, **fields: Any) -> Pod:
    """Return a pod that serves."""
    defaults: dict[str, Any] = {
        "name": f"tiny-{REVISION}-{index}",
        "uid": f"uid-{index}",
        "index": index,
        "revision": REVISION,
        "owner_uid": "uid-tiny",
        "ip": f"10.0.0.{index + 1}",
        "is_scheduled": True,
        "is_ready": True,
        "gate_open": True,
        "gate_since": NOW - timedelta(hours=1),
        "container": Container(is_running=True, is_ready=True),
    }
    return Pod(**(defaults | fields))


def a_report(num_gpu_blocks: int = 2000, **fields: Any) -> Report:
    """Return a report."""
    return replace(Report(rank=0, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=0, block_size=16), **fields)


def a_worker(state: WorkerState = WorkerState.READY, *, blocks: int = 2000, **fields: Any) -> Worker:
    """Return a worker that reports this many blocks and, if awake, holds them."""
    defaults: dict[str, Any] = {
        "state": state,
        "pod_uid": "",
        "settings_digest": REVISION,
        "report": None if state in {WorkerState.STARTING, WorkerState.LOADING} else a_report(blocks),
        "num_gpu_blocks": blocks if state in AWAKE else 0,
    }
    return Worker(**(defaults | fields))


def a_situation(*workers: Worker | None, deployment: Deployment | None = None, **fields: Any) -> Situation:
    """Return that of a deployment with a pod for each worker; None = it gave no answer. All of the spec is wanted."""
    pods = fields.pop("pods", tuple(a_pod(index) for index in range(len(workers))))
    known = {pod.name: worker for pod, worker in zip(pods, workers, strict=True) if worker}
    wanted = deployment or a_deployment(replicas=len(workers))
    seen = {name: fields.pop(name) for name in _OBSERVED & fields.keys()}
    defaults: dict[str, Any] = {
        "observed": Observed(**{"deployment": wanted, "now": NOW, **seen}),
        "release": Release(default_image="worker:1"),
        "image": "worker:1",
        "revision": REVISION,
        "wanted_replicas": wanted.replicas,
        "pods": pods,
        "workers": known,
    }
    return Situation(**(defaults | fields))


def but(situation: Situation, **fields: Any) -> Situation:
    """Return the situation with other fields, of its own or of what was observed. Of a spec all replicas are wanted."""
    seen = {name: fields.pop(name) for name in _OBSERVED & fields.keys()}
    scale = {"wanted_replicas": seen["deployment"].replicas} if "deployment" in seen else {}
    return replace(situation, observed=replace(situation.observed, **seen), **(scale | fields))


def recorded(num_gpu_blocks: int = 0, *ranks: Rank, **conditions: tuple[str, str]) -> RecordedStatus:
    """Return a status with an agreed count, ranks, and conditions as TYPE=(status, reason), all since an hour."""
    cache = KvCache(16, num_gpu_blocks, 0, "", ranks) if num_gpu_blocks else None
    written = {
        type_: RecordedCondition(Condition(type_, status, reason, ""), NOW - timedelta(hours=1))  # type: ignore[arg-type]  # a test's own word
        for type_, (status, reason) in conditions.items()
    }
    return RecordedStatus(conditions=written, kv_cache=cache)
