"""What a fault test of the gateway says: one namespace with models, workers that stand in, and gateways.

The API server and the gateways are real processes. A worker is the gRPC service with made-up answers, in the test's
own process; its pod is an object that says where it listens, which may be a port with a broken network behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from dormouse_gateway.openai.testing import TalkingWorker
from dormouse_gateway.testing.slices import own_pod, slice_of
from dormouse_gateway.testing.workers import FakeWorker, pod
from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.client import KubeClient
from tests.faults.control_plane import ControlPlane
from tests.faults.gateway_process import GatewayProcess
from tests.faults.programs import clean_environment
from tests.faults.toxi import Toxiproxy
from tests.ports import free_port

PATIENCE_S = 150.0  # how long a wait lasts before the test fails
_LOOK_S = 0.05
_T = TypeVar("_T")


class Town:
    """One namespace, and everything in it."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, namespace: str, folder: Path, toxiproxy: Path) -> None:
        """Take the control plane, an administrator's client, and a folder for logs."""
        self.plane = plane
        self.kube = kube
        self.namespace = namespace
        self.folder = folder
        self._toxiproxy = toxiproxy
        self._workers: list[FakeWorker] = []
        self._gateways: list[GatewayProcess] = []

    def __repr__(self) -> str:
        """Show what runs."""
        return f"Town({self.namespace}, {self._gateways})"

    async def end(self) -> None:
        """End every process and every worker."""
        for gateway in self._gateways:
            gateway.program.end()
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    # models and their workers

    async def worker(self, kind: type[FakeWorker] = TalkingWorker) -> FakeWorker:
        """Start a worker."""
        worker = kind(name=f"w{len(self._workers)}")
        await worker.start()
        self._workers.append(worker)
        return worker

    async def model(self, name: str, *addresses: str, is_asleep: bool = False, **spec: Any) -> str:
        """Make a model with one pod at each address (host:port)."""
        body = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, **spec}
        obj = {"metadata": {"name": name, "namespace": self.namespace}}
        await self.kube.apply(INFERENCE_DEPLOYMENTS, {**obj, "spec": body}, field_manager="user")
        status = {"status": {"phase": "Asleep" if is_asleep else "Active"}}
        await self.kube.apply(INFERENCE_DEPLOYMENTS, obj | status, field_manager="operator", subresource="status")
        for index, address in enumerate(addresses):
            await self.add_pod(f"{name}-{index}", name, address, is_ready=not is_asleep)
        return name

    async def add_pod(self, name: str, model: str, address: str, *, is_ready: bool = True) -> None:
        """Make a pod of a model, as kubelet, control plane and operator would tell of it."""
        told = pod(name, model, address, ready=is_ready)
        metadata = {**told["metadata"], "namespace": self.namespace}
        containers = [{**told["spec"]["containers"][0], "image": "worker:1"}]
        await self.kube.apply(PODS, {"metadata": metadata, "spec": {"containers": containers}}, field_manager="tests")
        place = {key: metadata[key] for key in ("name", "namespace")}
        await self.kube.apply(
            PODS, {"metadata": place, "status": told["status"]}, field_manager="kubelet", subresource="status"
        )
        stored = await self.kube.get(PODS, self.namespace, name)
        made = slice_of(stored) if stored else None
        assert stored
        assert made, "a pod that runs is in a slice"
        await self.kube.apply(ENDPOINT_SLICES, made, field_manager="slices")
        owner = {"metadata": {"name": model, "namespace": self.namespace}, "status": {"pods": [own_pod(stored)]}}
        manager = f"operator of {name}"  # each adds its own to the list
        await self.kube.apply(INFERENCE_DEPLOYMENTS, owner, field_manager=manager, subresource="status")

    async def uid_of(self, pod_name: str) -> str:
        """Return a pod's UID."""
        found = await self.kube.get(PODS, self.namespace, pod_name)
        assert found
        return str(found["metadata"]["uid"])

    def writes(self) -> list[str]:
        """Return what gateways wrote in this namespace, as VERB RESOURCE NAME CODE."""
        told = []
        for entry in self.plane.audit():
            what = entry.get("objectRef") or {}
            if what.get("namespace") == self.namespace and entry["user"]["username"] == "gateway":
                told.append(f"{entry['verb']} {what['resource']} {what.get('name')} {entry['responseStatus']['code']}")
        return told

    # gateways, and the network around them

    @asynccontextmanager
    async def gateway(
        self, *, prefix: Sequence[str] = (), api_url: str = "", **settings: object
    ) -> AsyncIterator[GatewayProcess]:
        """Yield a gateway that serves; settings are DORMOUSE_… in lower case."""
        gateway = self.start_gateway(prefix=prefix, api_url=api_url, **settings)
        try:
            await self.eventually(gateway.is_ready)
            yield gateway
        finally:
            await asyncio.to_thread(gateway.program.end)

    def start_gateway(self, *, prefix: Sequence[str] = (), api_url: str = "", **settings: object) -> GatewayProcess:
        """Start a gateway; it ends with the town."""
        directed = {
            "KUBECONFIG": self.plane.kubeconfig("gateway", api_url),
            "DORMOUSE_WATCH_NAMESPACES": self.namespace,
            "DORMOUSE_HOST": "127.0.0.1",
            **{f"DORMOUSE_{name}PORT": free_port() for name in ("", "HTTP_", "METRICS_", "CONTROL_")},
        }
        chosen = {f"DORMOUSE_{name.upper()}": value for name, value in settings.items()}
        log = self.folder / f"gateway-{len(self._gateways)}.log"
        gateway = GatewayProcess(clean_environment(**(directed | chosen)), log, prefix)
        self._gateways.append(gateway)
        return gateway

    @asynccontextmanager
    async def network(self, upstream: str) -> AsyncIterator[Toxiproxy]:
        """Yield a toxiproxy to an address (host:port)."""
        async with Toxiproxy.running(self._toxiproxy, upstream, self.folder / "toxiproxy.log") as proxy:
            yield proxy

    # waiting

    async def eventually(self, look: Callable[[], Awaitable[_T]], *, timeout_s: float = PATIENCE_S) -> _T:
        """Wait until a look shows something true, and return that; fail when a gateway's log has to tell why not."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := await look()):  # noqa: ASYNC110  # what is looked at tells nobody of changes
                    await asyncio.sleep(_LOOK_S)
                return found
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:.0f} s: {self._story()}") from None

    async def until(self, check: Callable[[], _T], *, timeout_s: float = PATIENCE_S) -> _T:
        """Do the same with what needs no waiting itself."""

        async def look() -> _T:
            return check()

        return await self.eventually(look, timeout_s=timeout_s)

    async def holds(self, gateway: GatewayProcess, count: int, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many requests wait in a gateway."""

        async def look() -> bool:
            return await gateway.held() == count

        await self.eventually(look, timeout_s=timeout_s)

    def _story(self) -> str:
        """Return what a reader of a failure wants to see."""
        return "\n".join(f"{gateway!r}\n{gateway.program.tail()}" for gateway in self._gateways)
