"""For tests: a clock that is stepped, and a node that runs pods as a kubelet would. Nothing here sleeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.names import READINESS_GATE
from dormouse_kube.api import PODS
from dormouse_kube.testing import FakeKube
from dormouse_operator.model import WorkerState
from dormouse_operator.parse import CONTAINER, format_time
from dormouse_operator.testing_workers import FakeWorker, FakeWorkers


@dataclass(slots=True)
class SteppedClock:
    """A clock that only moves when told to."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def step(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


@dataclass(slots=True)
class FakeNode:
    """Runs the pods of a FakeKube: gives them a node, an IP, a container and a worker, and probes readiness."""

    kube: FakeKube
    workers: FakeWorkers
    clock: Callable[[], datetime]
    blocks: dict[str, int] = field(default_factory=dict)  # by replica label: what its worker will report
    is_full: bool = False  # no pod gets a node
    lost: set[str] = field(default_factory=set)  # pods whose kubelet is gone
    started: int = 0  # pods so far; none gets the address of an earlier one

    def tick(self) -> None:
        """Let the kubelet come round once."""
        for pod in self.kube.everything(PODS):
            if pod["metadata"]["name"] in self.lost:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod)
            elif not pod.get("status", {}).get("podIP"):
                self._start(pod)
            else:
                self._probe(pod)

    def worker_of(self, name: str) -> FakeWorker:
        """Return the worker of a pod."""
        pod = next(pod for pod in self.kube.everything(PODS) if pod["metadata"]["name"] == name)
        return self.workers.workers[pod["status"]["podIP"]]

    def lose(self, name: str) -> None:
        """Let the node of a pod fall silent, as the control plane sees it first: the pod is no longer ready."""
        self.lost.add(name)
        pod = next(pod for pod in self.kube.everything(PODS) if pod["metadata"]["name"] == name)
        self.workers.workers.pop(pod["status"]["podIP"])
        self._edit(pod["metadata"], lambda obj: _set_ready(obj, is_ready=False))

    def crash(self, name: str, *, exit_code: int, message: str = "", restarts: bool = True) -> None:
        """End the container of a pod; it starts anew at once, or backs off."""
        end = {"terminated": {"exitCode": exit_code, "reason": "Error", "message": message}}
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}

        def edit(pod: dict[str, Any]) -> None:
            status = pod["status"]["containerStatuses"][0]
            status["restartCount"] += 1
            status["lastState"] = end
            status["state"] = {"running": {"startedAt": format_time(self.clock())}} if restarts else waiting
            _set_ready(pod, is_ready=False)

        self.worker_of(name).restart()
        self.kube.edit(PODS, self._namespace(name), name, edit)

    def _namespace(self, name: str) -> str:
        pods = self.kube.everything(PODS)
        return next(str(pod["metadata"]["namespace"]) for pod in pods if pod["metadata"]["name"] == name)

    def _start(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        if self.is_full:
            words = "0/1 nodes are available: 1 Insufficient memory."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
            self._edit(metadata, lambda obj: obj.setdefault("status", {}).update(conditions=[condition]))
            return
        self.started += 1
        address = f"10.0.{self.started // 256}.{self.started % 256}"
        labels = metadata["labels"]
        digest = next(item["value"] for item in _environment(pod) if item["name"] == "DORMOUSE_SETTINGS_DIGEST")
        blocks = self.blocks.get(labels["inference.dormouse.dev/replica"], 2000)
        self.workers.workers[address] = FakeWorker(metadata["uid"], digest, num_gpu_blocks=blocks, first_digest=digest)

        def run(obj: dict[str, Any]) -> None:
            obj["spec"]["nodeName"] = "node"
            started = {"running": {"startedAt": format_time(self.clock())}}
            container = {"name": CONTAINER, "state": started, "ready": False, "restartCount": 0}
            scheduled = {"type": "PodScheduled", "status": "True"}
            obj["status"] = {
                "podIP": address,
                "phase": "Running",
                "conditions": [scheduled],
                "containerStatuses": [container],
            }

        self._edit(metadata, run)

    def _probe(self, pod: Mapping[str, Any]) -> None:
        worker = self.workers.workers[pod["status"]["podIP"]]
        gates = [item for item in pod["status"]["conditions"] if item["type"] == READINESS_GATE]
        is_ready = worker.state is WorkerState.READY and bool(gates) and gates[0]["status"] == "True"
        self._edit(pod["metadata"], lambda obj: _set_ready(obj, is_ready=is_ready))

    def _end(self, pod: Mapping[str, Any]) -> None:
        self.workers.workers.pop(pod.get("status", {}).get("podIP", ""), None)
        self.kube.finish_deletion(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _edit(self, metadata: Mapping[str, Any], change: Callable[[dict[str, Any]], object]) -> None:
        self.kube.edit(PODS, metadata["namespace"], metadata["name"], change)


def _environment(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(pod["spec"]["containers"][0]["env"])


def _set_ready(pod: dict[str, Any], *, is_ready: bool) -> None:
    """Write the condition that the kubelet derives from the probe and the gate."""
    others = [item for item in pod["status"]["conditions"] if item["type"] != "Ready"]
    pod["status"]["conditions"] = [*others, {"type": "Ready", "status": "True" if is_ready else "False"}]
    pod["status"]["containerStatuses"][0]["ready"] = is_ready
