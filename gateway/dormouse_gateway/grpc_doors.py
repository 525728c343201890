"""The gateway's two gRPC ports, for clients and for the operator: who may call which, and what health says of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]  # made only where asyncio is there
from grpc_reflection.v1alpha import reflection

from dormouse_api.auth import RequireRole
from dormouse_api.limits import roomy, server_options
from dormouse_api.mutual_tls import MutualTls
from dormouse_api.names import GATEWAY_CONTROL_SERVICE, INFERENCE_SERVICE, Role
from dormouse_api.peers import RequirePeer
from dormouse_api.threads import patient_threads
from dormouse_api.tickets import TicketCheck
from dormouse_api.v1 import inference_pb2
from dormouse_gateway.leaving import connection_options
from dormouse_gateway.settings import Settings
from dormouse_gateway.tls import Identity

assert inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name == INFERENCE_SERVICE


class GrpcDoors:
    """Two servers without services: `inference` and `control` get theirs before the start."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity | None,
        mutual_tls: MutualTls | None,
        proofs: TicketCheck,
        *,
        max_connections: int,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._mutual_tls = mutual_tls
        self._health = health.HealthServicer()
        most = {"grpc.max_allowed_incoming_connections": max_connections, **connection_options()}
        self.inference = self._server((), INFERENCE_SERVICE, most)  # nothing to guard, and guards cost every call
        guards: list[Any] = [RequireRole(proofs, {GATEWAY_CONTROL_SERVICE: Role.OPERATOR})]
        peers = [RequirePeer(mutual_tls.identity, proofs)] if mutual_tls else []
        self.control = self._server([*guards, *peers], GATEWAY_CONTROL_SERVICE)

    def add_port(self) -> int:
        """Let clients in: with TLS, where there is a certificate. Raises RuntimeError when the port is taken."""
        address = f"{self._settings.host}:{self._settings.port}"
        if self._identity:
            return self.inference.add_secure_port(address, self._identity.credentials())
        return self.inference.add_insecure_port(address)

    def add_control_port(self) -> int:
        """Let the operator in: with certificates of both sides, where there are any. Raises RuntimeError as above."""
        address = f"{self._settings.host}:{self._settings.control_port}"
        if self._mutual_tls:
            return self.control.add_secure_port(address, self._mutual_tls.server_credentials())
        return self.control.add_insecure_port(address)

    async def start(self) -> None:
        """Take calls."""
        await self.inference.start()
        await self.control.start()

    async def tell(self, *, is_serving: bool) -> None:
        """Say over the health service whether requests are served."""
        answer = health_pb2.HealthCheckResponse
        for service in ("", INFERENCE_SERVICE, GATEWAY_CONTROL_SERVICE):
            await self._health.set(service, answer.SERVING if is_serving else answer.NOT_SERVING)

    async def say_that_it_ends(self) -> None:
        """Say NOT_SERVING from now on, whatever is told later."""
        await self._health.enter_graceful_shutdown()

    def _server(self, guards: Sequence[Any], service: str, most: Mapping[str, int] | None = None) -> aio.Server:
        """Return a server with health and, if wished, reflection, and with guards; `most` are limits of its own."""
        own = server_options()
        options = dict(roomy(own) if service == INFERENCE_SERVICE else own) | dict(most or {})
        with patient_threads():  # gRPC starts its own with the first server
            server = aio.server(interceptors=guards, options=list(options.items()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._settings.enable_reflection:
            reflection.enable_server_reflection((service, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        return server
