"""FakeCluster: the cluster in memory, for tests of the commands. FakeKube with logs, metrics, rights and ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dormouse_cli.cluster import Cluster, LogQuery, Opened, Target
from dormouse_cli.world import World
from dormouse_kube.api import Kind, Resource
from dormouse_kube.errors import NotFound
from dormouse_kube.merge import merge_patch
from dormouse_kube.testing import FakeKube


@dataclass(slots=True)
class FakeCluster(FakeKube):
    """Cluster in memory. A test sets what is told; nothing is by itself."""

    address: str = "https://fake:6443"
    release: str = "v1.34.1"
    lines: dict[str, list[str]] = field(default_factory=dict)  # pod → its log, with times in front
    scrapes: dict[str, str] = field(default_factory=dict)  # pod → what its /metrics says
    ports: dict[str, int] = field(default_factory=dict)  # pod → the local port that stands for it
    refused: set[str] = field(default_factory=set)  # rights that the caller lacks: "patch pods"
    queries: list[LogQuery] = field(default_factory=list)
    forwards: list[tuple[str, int]] = field(default_factory=list)  # pod, port

    async def server_version(self) -> str:
        """See Cluster."""
        return self.release

    async def patch(self, kind: Kind, namespace: str, name: str, change: Mapping[str, Any]) -> Resource:
        """See Cluster."""
        await self._record("patch", kind, namespace, name)
        stored = self._stored((kind.plural, namespace, name))
        kept = {"status": stored.get("status")} if "status" in stored else {}
        return self._store.put(kind, (kind.plural, namespace, name), {**merge_patch(stored, change), **kept})

    async def may(self, verb: str, resource: str, group: str, namespace: str) -> bool:
        """See Cluster."""
        del group, namespace
        return f"{verb} {resource}" not in self.refused

    async def logs(self, namespace: str, pod: str, query: LogQuery) -> AsyncIterator[str]:
        """See Cluster."""
        self.queries.append(query)
        if pod not in self.lines:
            raise NotFound(f'pods "{pod}" not found in {namespace}', status=404, reason="NotFound")
        for line in self.lines[pod]:
            yield line

    async def metrics(self, namespace: str, pod: str, port: int) -> str:
        """See Cluster."""
        if pod not in self.scrapes:
            raise NotFound(f'pods "{pod}" not found in {namespace} ({port})', status=404, reason="NotFound")
        return self.scrapes[pod]

    @asynccontextmanager
    async def forward(self, namespace: str, pod: str, port: int) -> AsyncIterator[int]:
        """See Cluster."""
        self.forwards.append((f"{namespace}/{pod}", port))
        yield self.ports[pod]


def world(
    cluster: Cluster,
    *,
    namespace: str = "default",
    error: Exception | None = None,
    here: str = "127.0.0.1:1",
    http_here: str = "127.0.0.1:1",
) -> World:
    """Return the world that has this cluster; opening it raises `error`. By default nothing listens here."""

    @asynccontextmanager
    async def open_(target: Target) -> AsyncIterator[Opened]:
        if error:
            raise error
        yield Opened(cluster, target.namespace or namespace)

    return World(open_, here, http_here)


def _conforms(fake: FakeCluster) -> Cluster:
    """Let the type checker compare the fake with the protocol."""
    return fake
