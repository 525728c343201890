"""For tests: a FakeKube behind the API server's HTTP: lists in pages, watches, bookmarks; and faults on the way.

Only what a watcher needs. Writes go to the FakeKube directly, as by somebody else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from dormouse_kube.api import Kind
from dormouse_kube.errors import KubeError
from dormouse_kube.testing import FakeKube


@dataclass(slots=True)
class HttpKube:
    """The server. `fault` answers everything that comes while it is set; streams are broken by `kube.end_watches`."""

    kube: FakeKube
    kinds: Sequence[Kind]
    fault: int = 0  # the HTTP status of every answer, 0 = none
    requests: list[str] = field(default_factory=list)  # "list pods", "watch pods", …
    _streams: dict[str, set[web.StreamResponse]] = field(default_factory=dict)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if self.fault:
            return _say(self.fault, "a fault by order")
        parts = request.path.strip("/").split("/")
        kind = next((kind for kind in self.kinds if kind.plural == parts[-1]), None)
        if kind is None:
            return self._discover(request.path)
        namespace = parts[-2] if "namespaces" in parts else None
        is_watch = request.query.get("watch") == "true"
        self.requests.append(f"{'watch' if is_watch else 'list'} {kind.plural}")
        return await (self._watch if is_watch else self._list)(request, kind, namespace)

    async def send_to_watches(self, plural: str, event: dict[str, Any]) -> None:
        """Put something into every stream of a kind: a bookmark, an error."""
        for stream in list(self._streams.get(plural, ())):
            await stream.write(_line(event))

    def num_streams(self) -> int:
        """Return how many watches are open."""
        return sum(len(streams) for streams in self._streams.values())

    async def _list(self, request: web.BaseRequest, kind: Kind, namespace: str | None) -> web.Response:
        listed = await self.kube.list(kind, namespace, label_selector=request.query.get("labelSelector", ""))
        begin, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 500))
        token = str(begin + limit) if begin + limit < len(listed.items) else ""
        metadata = {"resourceVersion": listed.resource_version, "continue": token}
        items = listed.items[begin : begin + limit]
        return web.json_response({"kind": f"{kind.kind}List", "metadata": metadata, "items": items})

    async def _watch(self, request: web.BaseRequest, kind: Kind, namespace: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        streams = self._streams.setdefault(kind.plural, set())
        streams.add(response)
        watch = self.kube.watch(
            kind,
            namespace,
            resource_version=request.query["resourceVersion"],
            label_selector=request.query.get("labelSelector", ""),
        )
        try:
            async for event in watch:
                await response.write(_line({"type": event.type, "object": event.object}))
        except KubeError as error:
            await response.write(_line({"type": "ERROR", "object": {"code": error.status, "message": str(error)}}))
        finally:
            streams.discard(response)
        return response

    def _discover(self, path: str) -> web.Response:
        """Say which kinds there are."""
        version = path.removeprefix("/apis/").removeprefix("/api/").strip("/")
        if path in {"/api", "/apis"}:
            groups = {kind.api_version.partition("/")[0] for kind in self.kinds if "/" in kind.api_version}
            found = [_group(name, self.kinds) for name in sorted(groups)]
            return web.json_response({"versions": ["v1"], "groups": found})
        resources = [
            {
                "name": kind.plural,
                "singularName": "",
                "kind": kind.kind,
                "namespaced": kind.namespaced,
                "verbs": ["list", "watch", "patch"],
            }
            for kind in self.kinds
            if kind.api_version == version
        ]
        return web.json_response({"groupVersion": version, "resources": resources})


@asynccontextmanager
async def serve(server: HttpKube) -> AsyncIterator[str]:
    """Serve while the context lasts; yields the address."""
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()


def _group(name: str, kinds: Sequence[Kind]) -> dict[str, Any]:
    versions = sorted({kind.api_version for kind in kinds if kind.api_version.startswith(f"{name}/")})
    told = [{"groupVersion": version, "version": version.partition("/")[2]} for version in versions]
    return {"name": name, "versions": told, "preferredVersion": told[0]}


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _say(status: int, message: str) -> web.Response:
    body = {"kind": "Status", "code": status, "message": message}
    return web.json_response(body, status=status)
