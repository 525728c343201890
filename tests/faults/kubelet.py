"""Plays scheduler, kubelet and containers for the pods of one namespace: a fake worker behind real gRPC for each.

Like a kubelet it owns the pod's status but the readiness gate (server-side apply keeps the two apart), probes its
containers now and then, and removes a pod from the API when its processes have ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dormouse_api.names import CONTROL_PORT, LABEL_REPLICA, READINESS_GATE
from dormouse_kube.api import PODS, Kind, KubeApi, Resource
from dormouse_kube.errors import Conflict, Forbidden, Invalid, NotFound
from dormouse_kube.reflector import ObjectKey, Reflector
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.grpc import serve
from tests.ports import free_network

_BINDINGS = Kind("v1", "Binding", "bindings")
_PROBE_S = 0.1
_NODE = "process-node"
_NETWORK = free_network()  # 127.N.*.*: two test runs on one machine do not meet


@dataclass
class RunningPod:
    """What the node keeps of one pod."""

    name: str
    address: str
    worker: FakeWorker
    stack: AsyncExitStack
    started: str
    restarts: int = 0
    last_end: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)


class ProcessKubelet:
    """Runs the pods of one namespace in this process."""

    def __init__(self, kube: KubeApi, namespace: str, operator_seed: str, on_change: Callable[[], None]) -> None:
        """Take the API as the node sees it, the seed of the key that workers know, and whom to tell of every change."""
        self._kube = kube
        self._namespace = namespace
        self._seed = operator_seed
        self._on_change = on_change
        self._dirty = asyncio.Event()
        self._pods = Reflector(kube, PODS, [namespace], on_change=self._note)
        self._running: dict[str, RunningPod] = {}
        self.blocks: dict[str, int] = {}  # by replica label: what its worker will report
        self.prepare: Callable[[FakeWorker], None] = FakeWorker.finish_loading  # a new container's first doing
        self.starts: Counter[str] = Counter()  # pods by name: more than one means that a child was made twice
        self._addresses = 0

    def __repr__(self) -> str:
        """Show the pods that run."""
        return f"ProcessKubelet({', '.join(pod.name for pod in self._running.values())})"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ProcessKubelet]:
        """Work while the context lasts; then end every worker."""
        tasks = [asyncio.create_task(self._pods.run()), asyncio.create_task(self._loop())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(pod.stack.aclose() for pod in self._running.values()))
            for result in results:
                if isinstance(result, Exception):
                    raise result

    def worker(self, pod_name: str) -> FakeWorker:
        """Return the worker of a pod that runs."""
        return next(pod.worker for pod in self._running.values() if pod.name == pod_name)

    @property
    def workers(self) -> dict[str, FakeWorker]:
        """Return all workers by pod name."""
        return {pod.name: pod.worker for pod in self._running.values()}

    def crash(self, pod_name: str, *, exit_code: int = 137) -> None:
        """End the container of a pod; it starts anew at once."""
        pod = next(pod for pod in self._running.values() if pod.name == pod_name)
        pod.restarts += 1
        pod.last_end = {"terminated": {"exitCode": exit_code, "reason": "Error"}}
        pod.started = _now()
        pod.worker.restart()
        self.prepare(pod.worker)
        self._dirty.set()

    def _note(self, _: ObjectKey, __: Resource | None) -> None:
        self._dirty.set()

    async def _loop(self) -> None:
        """Look at every pod after each change, and now and then."""
        while True:
            self._dirty.clear()
            await asyncio.gather(*(self._look(pod) for pod in list(self._pods.objects.values())))
            gone = self._running.keys() - {pod["metadata"]["uid"] for pod in self._pods.objects.values()}
            await asyncio.gather(*(self._stop(uid) for uid in gone))
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_S):
                    await self._dirty.wait()

    async def _look(self, pod: Resource) -> None:
        """Bring one pod a step on. What changed meanwhile is seen in the next round."""
        uid = pod["metadata"]["uid"]
        with suppress(Conflict, Forbidden, NotFound, Invalid):  # Forbidden: its namespace is being deleted
            if "deletionTimestamp" in pod["metadata"]:
                await self._stop(uid)
                name = pod["metadata"]["name"]
                await self._kube.delete(PODS, self._namespace, name, uid=uid, grace_period_s=0)
                return
            if uid not in self._running:
                await self._start(pod)
            await self._report(pod, self._running[uid])

    async def _start(self, pod: Resource) -> None:
        """Bind the pod to the node and start its worker."""
        metadata = pod["metadata"]
        address = await self._place(pod)
        environment = {item["name"]: item.get("value", "") for item in pod["spec"]["containers"][0]["env"]}
        blocks = self.blocks.get(metadata["labels"][LABEL_REPLICA], 2000)
        worker = FakeWorker(metadata["uid"], environment["DORMOUSE_SETTINGS_DIGEST"], num_gpu_blocks=blocks)
        stack = AsyncExitStack()
        await stack.enter_async_context(serve(worker, self._seed, f"{address}:{CONTROL_PORT}"))
        self._running[metadata["uid"]] = RunningPod(metadata["name"], address, worker, stack, _now())
        self.starts[metadata["name"]] += 1
        self.prepare(worker)

    async def _place(self, pod: Resource) -> str:
        """Bind the pod to the node; return the address that it gets."""
        metadata = pod["metadata"]
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": _NODE}
            place = {"name": metadata["name"], "namespace": self._namespace, "uid": metadata["uid"]}
            await self._kube.create(_BINDINGS, {"metadata": place, "target": target})
        self._addresses += 1
        return f"127.{_NETWORK}.{self._addresses // 250}.{self._addresses % 250 + 1}"

    async def _stop(self, uid: str) -> None:
        if running := self._running.pop(uid, None):
            await running.stack.aclose()
            self._on_change()

    async def _report(self, pod: Resource, running: RunningPod) -> None:
        """Write the status if it changed."""
        gates = [c for c in pod.get("status", {}).get("conditions", ()) if c["type"] == READINESS_GATE]
        is_open = bool(gates) and gates[0]["status"] == "True"
        status = _status_of(running, is_ready=is_open and running.worker.state is WorkerState.READY)
        if status == running.written:
            return
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        await self._kube.apply(
            PODS, {"metadata": metadata, "status": status}, field_manager="kubelet", subresource="status"
        )
        running.written = status
        self._on_change()


def _status_of(running: RunningPod, *, is_ready: bool) -> Mapping[str, Any]:
    """Return what a kubelet would say of the pod."""
    container = {
        "name": "worker",
        "state": {"running": {"startedAt": running.started}},
        "lastState": running.last_end,
        "ready": running.worker.state is WorkerState.READY,
        "restartCount": running.restarts,
        "image": "worker",
        "imageID": "",
    }
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if is_ready else "False"},
    ]
    return {
        "podIP": running.address,
        "podIPs": [{"ip": running.address}],
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": [container],
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
