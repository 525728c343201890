"""A gRPC port for one service that other people's programs call. Owns its server; knows no service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]  # made only where asyncio is there

from dormouse_api.limits import server_options
from dormouse_api.threads import patient_threads
from dormouse_gateway.leaving import connection_options
from dormouse_gateway.tls import Identity, SelfSigned

_ANSWER = health_pb2.HealthCheckResponse


class ServiceDoor:
    """Use: start, tell that it serves, stop."""

    def __init__(
        self,
        add: Callable[[Any], None],
        *,
        identity: Identity | SelfSigned | None,
        max_calls: int,
        max_message_bytes: int,
    ) -> None:
        """Take what adds the service to a server, what to prove the name with, and how many calls may run."""
        self._identity = identity
        self._health = health.HealthServicer()
        options = {
            **dict(server_options()),
            **connection_options(),
            "grpc.max_receive_message_length": max_message_bytes,
        }
        with patient_threads():
            self._server = aio.server(options=list(options.items()), maximum_concurrent_rpcs=max_calls)
        add(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises RuntimeError when it is taken."""
        address = f"{host}:{port}"
        await self.tell(is_serving=False)
        if self._identity:
            taken = self._server.add_secure_port(address, self._identity.credentials())
        else:
            taken = self._server.add_insecure_port(address)
        await self._server.start()
        return taken

    async def tell(self, *, is_serving: bool) -> None:
        """Say over the health service whether calls are served."""
        await self._health.set("", _ANSWER.SERVING if is_serving else _ANSWER.NOT_SERVING)

    async def say_that_it_ends(self) -> None:
        """Say NOT_SERVING from now on."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Take no calls any more; what runs gets `grace_s`."""
        await self._server.stop(grace_s)
