"""What runs in the ladder's sandbox: cluster, operator, gateway, stand-in workers; and what is seen of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.fleet import kwok_build
from bench.fleet.cluster import Cluster
from bench.fleet.deployments import MANAGER, manifest
from bench.fleet.follow import follow
from bench.fleet.operators import Operator
from bench.fleet.tracker import FleetError
from bench.ladder.client import Client, connected
from bench.ladder.gateway_process import GatewayProcess, operator_environment
from bench.ladder.journal import Journal
from bench.ladder.workers import JOURNAL
from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, KubeApi, Resource
from dormouse_kube.client import KubeClient
from localkube import build
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import cache_root

ROOT = cache_root() / "bench-ladder"
KWOK_ROOT = cache_root() / "bench-operator"  # where the fleet's benchmark builds it
WORKERS = "bench.ladder.workers"
NUM_PODS = 200
POLL_S = 0.01
STEP_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Seen:
    """The deployments and pods as the API server tells of them."""

    statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    pods: dict[str, set[str]] = field(default_factory=dict)  # by deployment

    def deployment(self, obj: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a deployment."""
        del is_gone  # none is deleted
        self.statuses[obj["metadata"]["name"]] = obj.get("status") or {}

    def pod(self, obj: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a pod."""
        metadata = obj["metadata"]
        names = self.pods.setdefault(metadata["labels"][LABEL_DEPLOYMENT], set())
        names.discard(metadata["name"]) if is_gone else names.add(metadata["name"])

    def phase(self, name: str) -> str:
        """Return a deployment's phase, "" if it has none yet."""
        return str(self.statuses.get(name, {}).get("phase") or "")

    def rung(self, name: str) -> str:
        """Return where a deployment is on the ladder, "" if it never was on it."""
        return str((self.statuses.get(name, {}).get("lifecycle") or {}).get("rung") or "")


@dataclass(slots=True)
class World:
    """What every part needs."""

    kube: KubeApi
    gateway: GatewayProcess
    operator: Operator
    client: Client
    journal: Journal
    seen: Seen
    say: Callable[[str], None]

    def __repr__(self) -> str:
        return f"World({self.operator!r}, {self.gateway!r}, {len(self.seen.statuses)} deployments)"

    async def add(self, names: Sequence[str], **lifecycle: int | None) -> None:
        """Apply deployments with this lifecycle and wait until each serves."""
        for name in names:
            made = manifest(name)
            made["spec"]["lifecycle"] = {"minActiveSeconds": 0, "holdTimeoutSeconds": 120, **lifecycle}
            await self.kube.create(INFERENCE_DEPLOYMENTS, made)
        for name in names:
            await self.until(f"{name} to be ready once", partial(self.journal.of, name))

    async def stop(self, name: str) -> None:
        """Have the deployment keep no pod and wake no more, so that it disturbs nothing."""
        patch = {"spec": {"lifecycle": {"desiredState": "Zero"}}}
        await self.kube.apply(INFERENCE_DEPLOYMENTS, {**_head(name), **patch}, field_manager=MANAGER)

    async def until_level(self, name: str, level: int) -> None:
        """Wait until the deployment sleeps so deep and everybody knows."""

        def is_there() -> bool:
            entries = [entry for entry in self.journal.of(name) if entry.what != "request"]
            is_asleep = bool(entries) and entries[-1].what == "asleep" and entries[-1].level == level
            return is_asleep and self.seen.rung(name) == f"Level{level}" and "Asleep" in self.seen.phase(name)

        await self.until(f"{name} to sleep at level {level}", is_there)

    async def until_zero(self, name: str) -> None:
        """Wait until the deployment has no pod and everybody knows."""
        await self.until(f"{name} to have no pod", lambda: self.seen.rung(name) == "Zero" and not self.seen.pods[name])

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        """Wait until something is seen. Raises FleetError after a minute, or when operator or gateway have ended."""
        deadline_s = time.monotonic() + STEP_TIMEOUT_S
        while not holds():
            self.operator.check()
            if time.monotonic() > deadline_s:
                states = {name: (self.seen.phase(name), self.seen.rung(name)) for name in self.seen.statuses}
                raise FleetError(f"waited {STEP_TIMEOUT_S:.0f} s for {what}: {states}")
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def running_world(progress: Progress) -> AsyncIterator[World]:
    """Start everything in this sandbox; it ends with the sandbox. Raises LocalkubeError, KubeError, FleetError."""
    paths = Paths(ROOT)
    binaries = build.build(Paths(cache_root() / "localkube"), progress)
    cluster = Cluster(paths, binaries, kwok_build.build(KWOK_ROOT, progress.say), WORKERS)
    cluster.start(NUM_PODS, progress)
    gateway = GatewayProcess(cluster)
    operator = Operator(cluster, 0, operator_environment())
    await gateway.until_ready()
    journal, seen = Journal(paths.run / JOURNAL), Seen()
    async with (
        await KubeClient.connect(kubeconfig=str(paths.pki / "admin.conf")) as kube,
        connected() as client,
        _following(kube, seen),
    ):
        yield World(kube, gateway, operator, client, journal, seen, progress.say)


@asynccontextmanager
async def _following(kube: KubeApi, seen: Seen) -> AsyncIterator[None]:
    """Follow the fleet while the context lasts; a broken watch ends it with its error."""
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(follow(kube, INFERENCE_DEPLOYMENTS, seen.deployment)),
            tasks.create_task(follow(kube, PODS, seen.pod, label_selector=LABEL_DEPLOYMENT)),
        ]
        yield
        for task in running:
            task.cancel()


def _head(name: str) -> dict[str, Any]:
    made = manifest(name)
    return {key: made[key] for key in ("apiVersion", "kind", "metadata")}


def log_folder() -> Path:
    """Return where the logs of the last run lie."""
    return Paths(ROOT).logs
