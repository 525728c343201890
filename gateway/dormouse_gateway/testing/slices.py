"""For tests: what control plane and operator tell of pods: EndpointSlices, and whom a deployment knows as its own.

`ControlledKube` does it in memory and at once, `SliceController` beside a real API server that runs no controllers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dormouse_api.names import COMPONENT_FOLLOWER, LABEL_COMPONENT, LABEL_DEPLOYMENT, LABEL_REVISION
from dormouse_gateway.model import LABEL_SERVICE
from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_DEPLOYMENTS, PODS, Kind, KubeApi, Resource
from dormouse_kube.reflector import ObjectKey, Reflector
from dormouse_kube.testing import FakeKube


def slice_of(pod: Resource) -> dict[str, Any] | None:
    """Return the slice of a stored pod alone, None while it is in none: without address, ended, or a follower.

    Its addresses are called names: an API server takes none of loopback as addresses, where workers of tests listen.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, address = metadata.get("labels") or {}, status.get("podIP")
    is_follower = labels.get(LABEL_COMPONENT) == COMPONENT_FOLLOWER
    if not address or is_follower or status.get("phase") in {"Failed", "Succeeded"}:
        return None
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    is_leaving = "deletionTimestamp" in metadata
    place = {"name": metadata["name"], "namespace": metadata["namespace"]}
    ports = [port for container in _containers(pod["spec"]) for port in container.get("ports") or ()]
    return {
        "metadata": {**place, "labels": {**_deployment(labels), LABEL_SERVICE: labels[LABEL_DEPLOYMENT]}},
        "addressType": "FQDN",
        "ports": [
            {"name": port["name"], "port": port["containerPort"]}
            for port in ports
            if port.get("name") in {"grpc", "http"}
        ],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": is_ready and not is_leaving, "terminating": is_leaving},
                "targetRef": {"kind": "Pod", **place, "uid": metadata["uid"]},
            }
        ],
    }


def _containers(spec: Resource) -> list[Any]:
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def own_pod(pod: Resource) -> dict[str, str]:
    """Return what the operator writes of a stored pod that it made."""
    metadata = pod["metadata"]
    role = {"role": metadata["labels"]["role"]} if "role" in metadata["labels"] else {}  # a label of tests alone
    revision = metadata["labels"].get(LABEL_REVISION, "")
    return {"name": metadata["name"], "uid": metadata["uid"], "revision": revision, **role}


def _deployment(labels: Any) -> dict[str, str]:
    return {LABEL_DEPLOYMENT: labels[LABEL_DEPLOYMENT]}


class ControlledKube(FakeKube):
    """Kubernetes in memory whose controllers act at once; every pod with the labels is one that the operator made."""

    def put(self, kind: Kind, obj: Resource) -> Resource:
        """See FakeKube."""
        if kind == INFERENCE_DEPLOYMENTS:
            obj = self._with_pods(dict(obj))
        stored = super().put(kind, obj)
        self._follow(kind, stored["metadata"]["namespace"], stored["metadata"]["name"], stored)
        return stored

    def edit(self, kind: Kind, namespace: str, name: str, change: Callable[[dict[str, Any]], object]) -> Resource:
        """See FakeKube."""

        def changed(obj: dict[str, Any]) -> None:
            change(obj)
            if kind == INFERENCE_DEPLOYMENTS:
                obj.update(self._with_pods(obj))

        stored = super().edit(kind, namespace, name, changed)
        self._follow(kind, namespace, name, stored)
        return stored

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_period_s: int | None = None
    ) -> Resource | None:
        """See FakeKube."""
        before = self.peek(kind, namespace, name)
        left = await super().delete(kind, namespace, name, uid=uid, grace_period_s=grace_period_s)
        if before:
            self._follow(kind, namespace, name, before)
        return left

    def _follow(self, kind: Kind, namespace: str, name: str, known: Resource) -> None:
        """Bring slice and status in line with a pod that changed."""
        deployment = (known["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT)
        if kind != PODS or not deployment:
            return
        if self.peek(INFERENCE_DEPLOYMENTS, namespace, deployment):
            self.edit(INFERENCE_DEPLOYMENTS, namespace, deployment, lambda _: None)
        pod = self.peek(PODS, namespace, name)
        if made := slice_of(pod) if pod else None:
            super().put(ENDPOINT_SLICES, made)
        elif self.peek(ENDPOINT_SLICES, namespace, name):
            self.finish_deletion(ENDPOINT_SLICES, namespace, name)

    def _with_pods(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return the deployment with the pods that it has in its status."""
        metadata = obj["metadata"]
        own = [pod for pod in self.everything(PODS) if _is_of(pod, metadata["namespace"], metadata["name"])]
        if not own and not obj.get("status"):
            return obj
        return {**obj, "status": {**(obj.get("status") or {}), "pods": [own_pod(pod) for pod in own]}}


def _is_of(pod: Resource, namespace: str, deployment: str) -> bool:
    metadata = pod["metadata"]
    return bool(
        metadata["namespace"] == namespace and (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT) == deployment
    )


class SliceController:
    """Keeps a slice for every worker pod at an API server."""

    def __init__(self, kube: KubeApi, namespaces: Sequence[str] = ()) -> None:
        """Take the API server, and where to look; nothing means everywhere."""
        self._kube = kube
        self._dirty: asyncio.Queue[tuple[ObjectKey, Resource | None]] = asyncio.Queue()
        self._pods = Reflector(
            kube,
            PODS,
            namespaces,
            label_selector=LABEL_DEPLOYMENT,
            on_change=lambda *told: self._dirty.put_nowait(told),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work while the context lasts."""
        running = asyncio.create_task(self.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key, pod = await self._dirty.get()
            if made := slice_of(pod) if pod else None:
                await self._kube.apply(ENDPOINT_SLICES, made, field_manager="slices")
            else:
                await self._kube.delete(ENDPOINT_SLICES, key.namespace, key.name)
