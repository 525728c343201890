"""The cluster as scenarios see it: what a watch says of deployments and pods, and the orders that a user gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, KubeApi, Resource
from dormouse_kube.client import KubeClient
from dormouse_kube.reflector import Reflector
from tests.e2e.kit import Deployments, Manifest
from tools.kubectl import Cluster
from tools.release import Release, fullname

Check = Callable[["Seen"], Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """One deployment and its pods, as last heard of."""

    status: Manifest
    pods: tuple[Resource, ...]

    @property
    def rung(self) -> str:
        """Return where it stands on the ladder, "" before it is known."""
        return str((self.status.get("lifecycle") or {}).get("rung", ""))

    @property
    def revision(self) -> str:
        """Return which spec the pods are to run."""
        return str((self.status.get("rollout") or {}).get("revision", ""))

    def condition(self, kind: str) -> Manifest:
        """Return one condition, {} if it is not there."""
        return next((c for c in self.status.get("conditions", ()) if c["type"] == kind), {})

    def serves(self, replicas: int) -> bool:
        """Return whether so many pods are there, and all serve."""
        ready = self.status.get("readyReplicas", 0)
        return self.condition("Ready").get("status") == "True" and ready == replicas == len(self.pods)

    def has_rolled_out(self, before: str, replicas: int) -> bool:
        """Return whether all pods run another spec than `before`."""
        is_complete = self.condition("Progressing").get("reason") == "Complete"
        return self.revision != before and is_complete and self.serves(replicas)

    def is_at_zero(self) -> bool:
        """Return whether it sleeps without a pod."""
        return self.rung == "Zero" and not self.pods


@dataclass(slots=True)
class World:
    """Deployments and pods of the release's one namespace."""

    cluster: Cluster
    release: Release
    api: KubeApi
    deployments: Deployments
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _reflectors: dict[str, Reflector] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """Return the namespace that the release watches."""
        return self.release.watch_namespaces[0]

    def seen(self, name: str) -> Seen:
        """Return what was last heard of a deployment."""
        found = self._reflectors["deployments"].get(self.namespace, name)
        pods = self._reflectors["pods"].objects.values()
        mine = (pod for pod in pods if pod["metadata"]["labels"].get(LABEL_DEPLOYMENT) == name)
        return Seen((found or {}).get("status") or {}, tuple(sorted(mine, key=lambda pod: pod["metadata"]["name"])))

    async def until(self, name: str, check: Check, timeout_s: float = 600) -> Any:
        """Wait until a check of the deployment returns something true, and return that. Raises AssertionError."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                while not (found := check(self.seen(name))):
                    await self._changed.wait()
                return found
        except TimeoutError:
            seen = self.seen(name)
            pods = [pod["metadata"]["name"] for pod in seen.pods]
            told = json.dumps(seen.status)
            raise AssertionError(f"{name}: not within {timeout_s:g} s; pods {pods}, status {told}") from None

    async def apply(self, name: str, **spec: Any) -> None:
        """Apply a deployment."""
        await asyncio.to_thread(self.deployments.apply, name, **spec)

    async def patch(self, name: str, spec: Manifest) -> None:
        """Merge-patch the spec."""
        await asyncio.to_thread(self.deployments.patch, name, spec)

    async def kubectl(self, *arguments: str) -> str:
        """Run kubectl."""
        return await asyncio.to_thread(self.cluster.kubectl, *arguments)

    async def restart(self, component: str) -> None:
        """Restart the operator's or the gateway's pods as a user would, and wait until that is done."""
        name = f"deployment/{fullname(self.release.name)}-{component}"
        await self.kubectl("rollout", "restart", name, "-n", self.release.namespace)
        await self.wait_for_pods(component)

    async def wait_for_pods(self, component: str) -> None:
        """Wait until all pods of the operator or the gateway are ready, and none of another revision is left."""
        name = f"deployment/{fullname(self.release.name)}-{component}"
        await self.kubectl("rollout", "status", name, "-n", self.release.namespace, "--timeout=180s")

    async def gateways(self) -> list[Resource]:
        """Return the gateway's pods, those that end left out."""
        selector = f"app.kubernetes.io/component=gateway,app.kubernetes.io/instance={self.release.name}"
        listed = await self.api.list(PODS, self.release.namespace, label_selector=selector)
        return [pod for pod in listed.items if "deletionTimestamp" not in pod["metadata"]]

    async def gateway_address(self) -> str:
        """Return address and port of the Service in front of the gateways."""
        name = self.release.gateway.partition("/")[2]
        service = json.loads(await self.kubectl("get", "service", name, "-n", self.release.namespace, "-o", "json"))
        return f"{service['spec']['clusterIP']}:50051"

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _on_change(self, *_: object) -> None:
        task = asyncio.get_running_loop().create_task(self._tell())
        task.add_done_callback(lambda done: done.exception())

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Keep what is seen true while the context lasts."""
        place = (self.namespace,)
        self._reflectors = {
            "deployments": Reflector(self.api, INFERENCE_DEPLOYMENTS, place, on_change=self._on_change),
            "pods": Reflector(self.api, PODS, place, label_selector=LABEL_DEPLOYMENT, on_change=self._on_change),
        }
        tasks = [asyncio.create_task(reflector.run()) for reflector in self._reflectors.values()]
        try:
            for reflector in self._reflectors.values():
                await reflector.synced.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_world(cluster: Cluster, release: Release) -> AsyncIterator[World]:
    """Log in and watch."""
    async with await KubeClient.connect(kubeconfig=cluster.kubeconfig or None) as api:
        world = World(cluster, release, api, Deployments(cluster, release.watch_namespaces[0]))
        async with world.watching():
            yield world
