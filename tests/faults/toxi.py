"""toxiproxy between two programs: the network refuses, cuts, falls silent, or is slow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.faults.programs import Program, clean_environment
from tests.ports import free_port

_NAME = "api"


class Toxiproxy:
    """One proxy of one toxiproxy server."""

    def __init__(self, session: aiohttp.ClientSession, control: str, port: int) -> None:
        """Take the control address and the port where clients connect."""
        self._session = session
        self._control = control
        self.port = port

    @classmethod
    @asynccontextmanager
    async def running(cls, program: Path, upstream: str, log: Path) -> AsyncIterator[Toxiproxy]:
        """Start a server with one proxy to `upstream` (host:port) while the context lasts."""
        control, port = free_port(), free_port()
        server = Program([program, "-host", "127.0.0.1", "-port", str(control)], log=log, env=clean_environment())
        try:
            async with aiohttp.ClientSession() as session:
                proxy = cls(session, f"http://127.0.0.1:{control}", port)
                await proxy._answers(server)
                fields = {"name": _NAME, "listen": f"127.0.0.1:{port}", "upstream": upstream, "enabled": True}
                await proxy._post("/proxies", fields)
                yield proxy
        finally:
            server.end()

    async def refuse(self) -> None:
        """Cut every connection and refuse new ones."""
        await self._post(f"/proxies/{_NAME}", {"enabled": False})

    async def accept(self) -> None:
        """Take connections again."""
        await self._post(f"/proxies/{_NAME}", {"enabled": True})

    async def fall_silent(self) -> None:
        """Let no byte through in either direction and close nothing, as a broken route does."""
        for stream in ("upstream", "downstream"):
            await self.lose(stream)

    async def speak(self) -> None:
        """End the silence. toxiproxy then closes the connections that lost bytes."""
        for stream in ("upstream", "downstream"):
            async with self._session.delete(f"{self._control}/proxies/{_NAME}/toxics/silence-{stream}") as answer:
                answer.raise_for_status()

    async def delay(self, latency_ms: int, jitter_ms: int = 0) -> None:
        """Let every byte take so long, in both directions."""
        for stream in ("upstream", "downstream"):
            attributes = {"latency": latency_ms, "jitter": jitter_ms}
            await self._add({"name": f"delay-{stream}", "type": "latency", "stream": stream, "attributes": attributes})

    async def reset(self) -> None:
        """Cut every connection, new ones too, by a reset as soon as something is sent."""
        await self._add({"name": "reset", "type": "reset_peer", "stream": "upstream", "attributes": {"timeout": 0}})

    async def lose(self, stream: str) -> None:
        """Let nothing through in one direction ("upstream", "downstream"), and close nothing."""
        await self._add(
            {"name": f"silence-{stream}", "type": "timeout", "stream": stream, "attributes": {"timeout": 0}}
        )

    async def _add(self, toxic: dict[str, Any]) -> None:
        await self._post(f"/proxies/{_NAME}/toxics", toxic)

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        async with self._session.post(f"{self._control}{path}", json=body) as answer:
            assert answer.status < 300, await answer.text()

    async def _answers(self, server: Program) -> None:
        """Ask until the server answers."""
        while True:
            assert server.exit_code is None, server.tail()
            try:
                async with self._session.get(f"{self._control}/version"):
                    return
            except aiohttp.ClientConnectorError:
                continue
