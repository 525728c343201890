"""What runs in the sandbox of pools: cluster, operator, gateway, stand-in GPUs, and a pool whose members are real.

The API server is real, nodes are KWOK's, GPUs are those of `localkube.gpus` as the scheduler sees them and a folder of
books as workers see them, and each worker is front and engine in processes of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.fleet import kwok_build
from bench.fleet.cluster import FLEET, OPERATOR_SEED, Cluster
from bench.fleet.follow import follow
from bench.fleet.operators import Operator
from bench.fleet.tracker import FleetError
from bench.ladder.client import Client, connected
from bench.ladder.gateway_process import GatewayProcess, operator_environment
from bench.ladder.world import KWOK_ROOT
from bench.slots.workers import DEVICES
from dormouse_api.names import LABEL_DEPLOYMENT, Role
from dormouse_api.tickets import SigningKey, TicketBook
from dormouse_kube.api import GPU_POOLS, INFERENCE_DEPLOYMENTS, PODS, Kind, KubeApi, Resource
from dormouse_kube.client import KubeClient
from dormouse_operator.act.workers import GrpcWorkerControl
from dormouse_operator.model import Worker
from dormouse_operator.parse import parse_pod
from dormouse_worker.model.device.ledger_file import offer_device, read_usage
from localkube import build
from localkube.gpus.objects import API_VERSION, DRIVER, Gpus
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import cache_root

ROOT = cache_root() / "bench-pools"
WORKERS = "bench.slots.workers"
NODE, POOL = "fake-0", "shared"
NUM_PODS = 200
NODES = Kind("v1", "Node", "nodes", namespaced=False)
CLASSES = Kind(API_VERSION, "DeviceClass", "deviceclasses", namespaced=False)
SLICES = Kind(API_VERSION, "ResourceSlice", "resourceslices", namespaced=False)
POLL_S = 0.01
STEP_TIMEOUT_S = 120.0


@dataclass(slots=True)
class Seen:
    """The pool, its members and their pods as the API server tells of them."""

    pools: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    deployments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    pods: dict[str, Resource] = field(default_factory=dict)

    def pool(self, obj: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a pool."""
        self.pools[obj["metadata"]["name"]] = {} if is_gone else obj.get("status") or {}

    def deployment(self, obj: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a member."""
        self.deployments[obj["metadata"]["name"]] = {} if is_gone else obj.get("status") or {}

    def pod(self, obj: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a pod."""
        name = obj["metadata"]["name"]
        self.pods.pop(name, None) if is_gone else self.pods.update({name: obj})

    def pods_of(self, name: str) -> list[Resource]:
        """Return the pods of a member."""
        return [pod for pod in self.pods.values() if pod["metadata"]["labels"][LABEL_DEPLOYMENT] == name]

    def holders(self, pool: str = POOL) -> list[str]:
        """Return which members hold a slot for good."""
        slots = (slot for slot in self.pools.get(pool, {}).get("slots", ()) if slot["phase"] == "Held")
        return [held["replica"].partition("[")[0] for slot in slots for held in slot.get("holders", ())]


@dataclass(slots=True)
class World:
    """What every part needs."""

    cluster: Cluster
    kube: KubeApi
    gateway: GatewayProcess
    operator: Operator
    client: Client
    seen: Seen
    workers: GrpcWorkerControl
    devices: Path
    say: Callable[[str], None]

    def __repr__(self) -> str:
        return f"World({self.operator!r}, {len(self.seen.deployments)} members)"

    async def offer(self, num_gpus: int, memory: str, num_bytes: int) -> None:
        """Have the first node offer GPUs, to the scheduler and to workers."""
        await self.publish(num_gpus, memory, [NODE])
        for name in Gpus(num_gpus, memory).names:
            offer_device(self.devices / name, num_bytes)

    async def publish(self, num_gpus: int, memory: str, nodes: Sequence[str]) -> None:
        """Have each of these nodes offer so many GPUs to the scheduler."""
        await self.kube.create(CLASSES, Gpus(num_gpus, memory).device_class())
        for name in nodes:
            node = await self.kube.get(NODES, "", name)
            assert node, "it is there since the start"
            await self.kube.create(SLICES, Gpus(num_gpus, memory, name).resource_slice(node["metadata"]["uid"]))

    async def add_pool(self, slots: int, *, name: str = POOL, **spec: Any) -> None:
        """Create a pool."""
        device = {"claim": {"deviceClassName": DRIVER}}
        metadata = {"name": name, "namespace": FLEET}
        head = {"apiVersion": GPU_POOLS.api_version, "kind": GPU_POOLS.kind, "metadata": metadata}
        await self.kube.create(GPU_POOLS, {**head, "spec": {"slots": slots, "device": device, **spec}})

    async def add_members(self, names: Sequence[str], model: Path, *, pool: str = POOL) -> None:
        """Create members and wait until each has a worker in STANDBY."""
        for name in names:
            await self.kube.create(INFERENCE_DEPLOYMENTS, member_manifest(name, model, pool))
        await self.until(f"{len(names)} members to rest", lambda: all(map(self.rests, names)))

    def rests(self, name: str) -> bool:
        """Return whether a member is where it should be while nobody calls it."""
        conditions = self.seen.deployments.get(name, {}).get("conditions", ())
        return any((told["type"], told["reason"]) == ("Ready", "Asleep") for told in conditions)

    async def status_of(self, name: str) -> Worker:
        """Return what the member's worker says of itself. Raises WorkerError."""
        [pod] = self.seen.pods_of(name)
        return await self.workers.get_status(parse_pod(pod))

    def marks(self) -> Mapping[str, Any]:
        """Return what the books of each device saw so far."""
        return {folder.name: read_usage(folder).marks for folder in sorted(self.devices.iterdir())}

    async def until(self, what: str, holds: Callable[[], object], *, timeout_s: float = STEP_TIMEOUT_S) -> None:
        """Wait until something is seen. Raises FleetError when it takes too long, or the operator has ended."""

        async def look() -> object:
            return holds()

        await self.eventually(what, look, timeout_s=timeout_s)

    async def eventually(
        self, what: str, look: Callable[[], Awaitable[object]], *, timeout_s: float = STEP_TIMEOUT_S
    ) -> None:
        """Wait until a look finds something true. Raises FleetError when it takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while not await look():
            self.operator.check()
            if time.monotonic() > deadline_s:
                raise FleetError(f"waited {timeout_s:.0f} s for {what}: {self.seen.pools}")
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def running_world(
    progress: Progress, *, workers: str = WORKERS, num_pods: int = NUM_PODS
) -> AsyncIterator[World]:
    """Start everything in this sandbox; it ends with the sandbox. Raises LocalkubeError, KubeError, FleetError."""
    paths = Paths(ROOT)
    binaries = build.build(Paths(cache_root() / "localkube"), progress)
    cluster = Cluster(paths, binaries, kwok_build.build(KWOK_ROOT, progress.say), workers)
    cluster.start(num_pods, progress)
    gateway = GatewayProcess(cluster)
    operator = Operator(cluster, 0, operator_environment())
    await gateway.until_ready()
    seen, devices = Seen(), paths.run / DEVICES
    devices.mkdir()
    control = GrpcWorkerControl(TicketBook(Role.OPERATOR, [SigningKey(OPERATOR_SEED, Role.OPERATOR)]))
    async with (
        await KubeClient.connect(kubeconfig=str(paths.pki / "admin.conf")) as kube,
        connected() as client,
        _following(kube, seen),
    ):
        yield World(cluster, kube, gateway, operator, client, seen, control, devices, progress.say)


@asynccontextmanager
async def _following(kube: KubeApi, seen: Seen) -> AsyncIterator[None]:
    """Follow what there is while the context lasts; a broken watch ends it with its error."""
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(follow(kube, GPU_POOLS, seen.pool)),
            tasks.create_task(follow(kube, INFERENCE_DEPLOYMENTS, seen.deployment)),
            tasks.create_task(follow(kube, PODS, seen.pod, label_selector=LABEL_DEPLOYMENT)),
        ]
        yield
        for task in running:
            task.cancel()


def member_manifest(name: str, model: Path, pool: str) -> dict[str, Any]:
    """Return a member of one replica."""
    engine = {"device": "cuda", "maxModelLen": 256, "maxNumSeqs": 4, "kvCacheMemory": "8Mi"}
    return {
        "apiVersion": INFERENCE_DEPLOYMENTS.api_version,
        "kind": INFERENCE_DEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": FLEET},
        "spec": {
            "model": {"uri": f"file://{model}"},
            "image": "worker.internal/dormouse:1",
            "engine": engine,
            "gpu": {"pool": {"name": pool}},
            "lifecycle": {"holdTimeoutSeconds": 280},
        },
    }
