"""For tests: a clock that is stepped, and a node that runs pods as a kubelet would. Nothing here sleeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.names import (
    COMPONENT_WORKER,
    LABEL_COMPONENT,
    LABEL_GROUP_SIZE,
    LABEL_LEADER_UID,
    LABEL_RANKS,
    READINESS_GATE,
    STANDBY_VARIABLE,
)
from dormouse_kube.api import PODS, RESOURCE_CLAIMS
from dormouse_kube.testing import FakeKube
from dormouse_operator.model import WorkerState
from dormouse_operator.parse import CONTAINER, format_time, parse_bytes, slot_of
from dormouse_operator.testing.adapters import FakeAdapters
from dormouse_operator.testing.device_plugin import FakeDevicePlugin, is_reservation
from dormouse_operator.testing.fake_worker import FakeWorker, keeps_cache
from dormouse_operator.testing.pooled import PooledWorker, SharedDevice
from dormouse_operator.testing.workers import FakeWorkers

_PROBED_WELL = {WorkerState.READY, WorkerState.ASLEEP, WorkerState.WAKING, WorkerState.STANDBY}  # at rest by its gate


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
    adapter_files: dict[str, str] = field(default_factory=dict)  # what new workers find: see `FakeAdapters`
    is_full: bool = False  # no pod gets a node
    lost: set[str] = field(default_factory=set)  # pods whose kubelet is gone
    unplaced: set[str] = field(default_factory=set)  # names of pods that get none
    reservations: FakeDevicePlugin = field(default_factory=FakeDevicePlugin)
    devices: dict[str, SharedDevice] = field(default_factory=dict)  # by slot of a pool
    started: int = 0  # pods so far; none gets the address of an earlier one

    def tick(self) -> None:
        """Let the kubelet come round once."""
        for pod in self.kube.everything(PODS):
            if pod["metadata"]["name"] in self.lost:
                continue
            if is_reservation(pod):
                self.reservations.tick(self.kube, pod)
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod)
            elif not pod.get("status", {}).get("podIP"):
                self._start(pod)
            else:
                self._probe(pod)
                self._resize(pod)
        self._join_groups()

    def probe(self, namespace: str, name: str) -> None:
        """Let the kubelet look at one pod that runs."""
        pod = self.kube.peek(PODS, namespace, name)
        if pod and pod.get("status", {}).get("podIP"):
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

    def find(self, name: str, worker: FakeWorker) -> None:
        """Let the node of a pod be heard again, with the worker that it had when it was lost."""
        self.lost.discard(name)
        pod = next(pod for pod in self.kube.everything(PODS) if pod["metadata"]["name"] == name)
        self.workers.workers[pod["status"]["podIP"]] = worker

    def miss_probe(self, name: str) -> None:
        """Let the kubelet miss one probe of a pod: it is not ready until the next."""
        pod = next(pod for pod in self.kube.everything(PODS) if pod["metadata"]["name"] == name)
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

        pod = next(pod for pod in self.kube.everything(PODS) if pod["metadata"]["name"] == name)
        if worker := self._leader_of(pod):
            worker.restart()
        self.kube.edit(PODS, self._namespace(name), name, edit)

    def _namespace(self, name: str) -> str:
        pods = self.kube.everything(PODS)
        return next(str(pod["metadata"]["namespace"]) for pod in pods if pod["metadata"]["name"] == name)

    def _start(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        if self.is_full or metadata["name"] in self.unplaced:
            words = "0/1 nodes are available: 1 Insufficient memory."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
            self._edit(metadata, lambda obj: obj.setdefault("status", {}).update(conditions=[condition]))
            return
        if not self._take_claim(pod):
            return
        self.started += 1
        address = f"10.0.{self.started // 256}.{self.started % 256}"
        labels = metadata["labels"]
        if labels[LABEL_COMPONENT] == COMPONENT_WORKER:
            self._add_worker(pod, address)

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

    def _take_claim(self, pod: Mapping[str, Any]) -> bool:
        """Count a pod among those of its slot's claim; return whether it has devices there, or needs none."""
        namespace, slot = pod["metadata"]["namespace"], slot_of(pod)
        claim = self.kube.peek(RESOURCE_CLAIMS, namespace, slot) if slot else None
        if slot and not pod["spec"].get("resourceClaims"):
            return True
        if not slot or claim is None or "deletionTimestamp" in claim["metadata"]:
            return not slot
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        device = {"request": "gpu", "driver": "gpu.example.com", "pool": "node", "device": slot}

        def count_in(obj: dict[str, Any]) -> None:
            status = obj.setdefault("status", {})
            status.setdefault("allocation", {"devices": {"results": [device]}})
            status.setdefault("reservedFor", []).append(consumer)

        self.kube.edit(RESOURCE_CLAIMS, namespace, slot, count_in)
        return True

    def _leave_claim(self, pod: Mapping[str, Any]) -> None:
        """Count a pod out; without any, a claim's devices are the cluster's again."""
        namespace, slot = pod["metadata"]["namespace"], slot_of(pod)

        def count_out(obj: dict[str, Any]) -> None:
            known = obj.get("status", {}).get("reservedFor", [])
            left = [consumer for consumer in known if consumer["uid"] != pod["metadata"]["uid"]]
            obj["status"] = {**obj["status"], "reservedFor": left} if left else {}

        if slot and self.kube.peek(RESOURCE_CLAIMS, namespace, slot):
            self.kube.edit(RESOURCE_CLAIMS, namespace, slot, count_out)

    def _add_worker(self, pod: Mapping[str, Any], address: str) -> None:
        labels = pod["metadata"]["labels"]
        digest = next(item["value"] for item in _environment(pod) if item["name"] == "DORMOUSE_SETTINGS_DIGEST")
        blocks = self.blocks.get(labels["inference.dormouse.dev/replica"], 2000)
        known = {"num_gpu_blocks": blocks, "first_digest": digest, "num_ranks": int(labels.get(LABEL_RANKS, "1"))}
        known["has_cache"] = keeps_cache(pod["spec"]["containers"][0]["args"])
        known["adapters"] = FakeAdapters(dict(self.adapter_files))
        known["starts_in_standby"] = any(item["name"] == STANDBY_VARIABLE for item in _environment(pod))
        uid, slot = pod["metadata"]["uid"], slot_of(pod)
        if slot:
            device = self.devices.setdefault(slot, SharedDevice())
            self.workers.workers[address] = PooledWorker(
                uid, digest, state=WorkerState.STANDBY, sleep_level=3, device=device, **known
            )
        else:
            self.workers.workers[address] = FakeWorker(uid, digest, is_whole=LABEL_GROUP_SIZE not in labels, **known)

    def _probe(self, pod: Mapping[str, Any]) -> None:
        worker = self.workers.workers.get(pod["status"]["podIP"])
        gates = [item for item in pod["status"]["conditions"] if item["type"] == READINESS_GATE]
        is_well = worker.state in _PROBED_WELL if worker else _runs(pod)
        is_ready = is_well and bool(gates) and gates[0]["status"] == "True"
        self._edit(pod["metadata"], lambda obj: _set_ready(obj, is_ready=is_ready))

    def _resize(self, pod: Mapping[str, Any]) -> None:
        """Give a worker the memory that it asks for; a full node gives no more than before."""
        asked = (pod["spec"]["containers"][0].get("resources", {}).get("requests") or {}).get("memory")
        known = pod["status"]["containerStatuses"][0].get("allocatedResources", {}).get("memory")
        if asked is None or asked == known:
            return
        if known and self.is_full and parse_bytes("", asked) > parse_bytes("", known):
            pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "node is full"}
            self._edit(pod["metadata"], lambda obj: obj["status"]["conditions"].append(pending))
            return

        def give(obj: dict[str, Any]) -> None:
            obj["status"]["containerStatuses"][0]["allocatedResources"] = {"memory": asked}
            conditions = obj["status"]["conditions"]
            obj["status"]["conditions"] = [item for item in conditions if item["type"] != "PodResizePending"]

        self._edit(pod["metadata"], give)

    def _end(self, pod: Mapping[str, Any]) -> None:
        worker = self.workers.workers.pop(pod.get("status", {}).get("podIP", ""), None)
        if isinstance(worker, PooledWorker):
            worker.device.give_back(worker)
        self._leave_claim(pod)
        self.kube.finish_deletion(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _join_groups(self) -> None:
        """Let every leader see which of its followers run."""
        pods = self.kube.everything(PODS)
        running = Counter(pod["metadata"]["labels"].get(LABEL_LEADER_UID) for pod in pods if _runs(pod))
        for pod in pods:
            if is_reservation(pod):
                continue
            size = int(pod["metadata"]["labels"].get(LABEL_GROUP_SIZE, "1"))
            worker = self.workers.workers.get(pod.get("status", {}).get("podIP", ""))
            if worker and size > 1:
                worker.see_group(is_whole=running[pod["metadata"]["uid"]] == size - 1)

    def _leader_of(self, pod: Mapping[str, Any]) -> FakeWorker | None:
        """Return the worker of the pod, or of its leader if that is there."""
        uid = pod["metadata"]["labels"].get(LABEL_LEADER_UID, pod["metadata"]["uid"])
        return next((worker for worker in self.workers.workers.values() if worker.pod_uid == uid), None)

    def _edit(self, metadata: Mapping[str, Any], change: Callable[[dict[str, Any]], object]) -> None:
        self.kube.edit(PODS, metadata["namespace"], metadata["name"], change)


def _environment(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(pod["spec"]["containers"][0]["env"])


def _runs(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    container = (status.get("containerStatuses") or [{}])[0]
    return status.get("phase") == "Running" and "running" in container.get("state", {})


def _set_ready(pod: dict[str, Any], *, is_ready: bool) -> None:
    """Write the condition that the kubelet derives from the probe and the gate."""
    others = [item for item in pod["status"]["conditions"] if item["type"] != "Ready"]
    pod["status"]["conditions"] = [*others, {"type": "Ready", "status": "True" if is_ready else "False"}]
    pod["status"]["containerStatuses"][0]["ready"] = is_ready
