"""The front's gRPC doors, for callers, for those in its pod and for the operator: who may call which, and their health.

At the socket in the pod certificates and roles of streams are asked of nobody: what it serves, a client may call as
well, and each call that is carried proves by its own metadata whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]  # made only where asyncio is there
from grpc_reflection.v1alpha import reflection

from dormouse_api.auth import RequireRole
from dormouse_api.limits import roomy, server_options
from dormouse_api.names import CONTROL_SERVICE, INFERENCE_SERVICE, KV_BLOCKS_SERVICE, RELAY_SERVICE, Role
from dormouse_api.tickets import TicketCheck
from dormouse_worker.front.api.listening import listen
from dormouse_worker.front.certificate import Certificate
from dormouse_worker.front.flags.settings import FrontSettings

_IN_POD = {CONTROL_SERVICE: Role.OPERATOR, KV_BLOCKS_SERVICE: Role.WORKER}
_REQUIRED = {**_IN_POD, RELAY_SERVICE: Role.GATEWAY}
_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcDoors:
    """Servers without services: `for_callers` and `control` get theirs before the start."""

    def __init__(self, settings: FrontSettings, certificate: Certificate, proofs: TicketCheck) -> None:
        self._settings = settings
        self._certificate = certificate
        self._health = health.HealthServicer()
        guards = [RequireRole(proofs, _REQUIRED), *certificate.guards(proofs)]
        self.inference, self.control = self._server(guards), self._server(guards)
        self._in_pod = self._server([RequireRole(proofs, _IN_POD)]) if settings.local_socket else None
        if settings.enable_reflection:
            names = (INFERENCE_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.inference)

    @property
    def for_callers(self) -> Sequence[aio.Server]:
        """Return who serves them: at the port, and in the pod where that has a socket."""
        return (self.inference, self._in_pod) if self._in_pod else (self.inference,)

    @property
    def _all(self) -> Sequence[aio.Server]:
        return (*self.for_callers, self.control)

    def listen(self) -> int:
        """Bind the callers' port, and the socket for those in the pod. Raises RuntimeError naming the flag."""
        if in_pod := self._in_pod:
            path = self._settings.local_socket
            listen(lambda _: in_pod.add_insecure_port(f"unix:{path}"), path, 0, "--local-socket")
        return self._listen(self.inference, self._settings.port, "--port")

    def listen_for_control(self) -> int:
        """Bind the operator's port. Raises RuntimeError naming the flag."""
        return self._listen(self.control, self._settings.control_port, "--control-port")

    async def start(self) -> None:
        """Take calls."""
        for server in self._all:
            await server.start()

    async def stop(self, grace_s: float) -> None:
        """Take none any more; what runs gets `grace_s`. Safe before the start."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._all))

    async def tell(self, *, is_ready: bool) -> None:
        """Say over the health service whether requests are served; the ports themselves serve always."""
        for service in ("", HEALTH_SERVICE, CONTROL_SERVICE):
            await self._health.set(service, _SERVING)
        await self._health.set(INFERENCE_SERVICE, _SERVING if is_ready else _NOT_SERVING)

    async def say_that_it_ends(self) -> None:
        """Say NOT_SERVING from now on, whatever is told later."""
        await self._health.enter_graceful_shutdown()

    def _listen(self, server: aio.Server, port: int, flag: str) -> int:
        return listen(partial(self._certificate.add_port, server), self._settings.host, port, flag)

    def _server(self, guards: Sequence[Any]) -> aio.Server:
        server = aio.server(
            interceptors=guards,
            options=roomy(server_options()),
            maximum_concurrent_rpcs=self._settings.max_open_calls,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server
