"""The gateway as one thing: two gRPC ports, two HTTP ports, two watches. Owns their start and end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]  # made only where asyncio is there
from grpc_reflection.v1alpha import reflection

from dormouse_api.auth import RequireRole
from dormouse_api.limits import MAX_MESSAGE_BYTES, server_options
from dormouse_api.mutual_tls import follow_directory
from dormouse_api.names import GATEWAY_CONTROL_SERVICE, INFERENCE_SERVICE, LABEL_DEPLOYMENT, Role
from dormouse_api.peers import RequirePeer
from dormouse_api.threads import patient_threads
from dormouse_api.v1 import gateway_control_pb2_grpc as control_rpc
from dormouse_api.v1 import inference_pb2
from dormouse_gateway.clients.salts import Salts
from dormouse_gateway.control import GatewayControl
from dormouse_gateway.descriptors import limit, share
from dormouse_gateway.files import watch_files
from dormouse_gateway.hold.holder import Holder
from dormouse_gateway.http import HttpDoor, Pulse
from dormouse_gateway.leaving import LATEST_S, connection_options, until_quiet
from dormouse_gateway.migrate.evictions import Evictions
from dormouse_gateway.migrate.migrator import Migrator
from dormouse_gateway.model import Endpoint
from dormouse_gateway.openai.app import make_app
from dormouse_gateway.openai.door import OpenAIDoor
from dormouse_gateway.openai.generating import Generating
from dormouse_gateway.proxy import InferenceProxy
from dormouse_gateway.router import Router
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.settings import (
    Settings,
    hold_settings,
    read_identity,
    read_keys,
    read_mutual_tls,
    read_policy,
)
from dormouse_gateway.telemetry.metrics import Metrics
from dormouse_gateway.telemetry.tracing import UNTRACED, Traces
from dormouse_gateway.workers.channels import Channels
from dormouse_gateway.workers.loads import LoadWatch
from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_DEPLOYMENTS, KubeApi, Resource
from dormouse_kube.reflector import ObjectKey, Reflector

_LOG = logging.getLogger(__name__)

_CONTROL_GRACE_S = 1.0  # the streams there have been told to end
_WAITING_S = 10.0  # between two comments to an HTTP client whose request is held
_HAND_BACK_S = 1.0  # so long before the end of the drain: time for the refusals to reach the clients
_SPARE_BYTES = 1 << 20  # so far beyond the limit gRPC lets a message in, to be refused with a sentence of ours

assert inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name == INFERENCE_SERVICE


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the gateway listens."""

    inference: int
    control: int
    http: int
    openai: int


class Gateway:
    """Everything composed. Use: start, then run until stopped."""

    def __init__(
        self,
        settings: Settings,
        seeds: Seeds,
        api: KubeApi,
        *,
        rng: random.Random | None = None,
        traces: Traces = UNTRACED,
    ) -> None:
        """Take the API server to learn from. Needs a running event loop. Raises BadSetting."""
        self._settings = settings
        self._shares = share(limit(), settings.http_max_connections)
        self._keys = read_keys(settings)
        self._identity = read_identity(settings)
        self.metrics = Metrics()
        tls = self._mutual_tls = read_mutual_tls(settings)
        if tls:
            self.metrics.follow_certificate(lambda: tls.expiry_s)
        self.channels = Channels(self._mutual_tls, tickets=seeds.tickets())
        self.router = Router(
            on_close=self.channels.discard,
            on_forget=self.metrics.forget,
            on_choice=self.metrics.chosen,
            policy=read_policy(settings),
            names=settings.names,
        )
        self.evictions = Evictions(self.router.pool.has_peer, after_s=settings.migrate_after_s)
        self.loads = LoadWatch(self.router, self.channels, on_draining=self.evictions.note_draining)
        self.migrator = Migrator(settings.moving, self.evictions, count=self.metrics.migrated)
        self.holder = Holder(
            self.router,
            hold_settings(settings),
            on_first=self.loads.on_deployment,
            on_unwanted=traces.on_unwanted(self.router.pool.is_ready),
            on_end=self.metrics.held,
        )
        self.router.on_endpoint = self._on_endpoint
        self.metrics.watch(self.router)
        self._is_ready = False
        self._health = health.HealthServicer()
        proxy = self._proxy = InferenceProxy(
            self.router,
            self.channels,
            self.metrics,
            self.holder,
            migrator=self.migrator,
            has_role=bool(seeds.gateway),
            keys=self._keys,
            salts=Salts(seeds.gateway[0] if seeds.gateway else ""),
            default_deadline_s=settings.default_deadline_s,
            rng=rng,
            traces=traces,
        )
        known = seeds.proofs(settings.pod_ips)
        guards: list[Any] = [RequireRole(known, {GATEWAY_CONTROL_SERVICE: Role.OPERATOR})]
        peers = [RequirePeer(self._mutual_tls.identity, known)] if self._mutual_tls else []
        most = {"grpc.max_allowed_incoming_connections": self._shares.grpc, **connection_options()}
        self._inference = self._server((), INFERENCE_SERVICE, most)  # nothing to guard, and guards cost every call
        self._inference.add_generic_rpc_handlers((proxy.handler(),))
        self._control = self._server([*guards, *peers], GATEWAY_CONTROL_SERVICE)
        self._activity = GatewayControl(self.router.activity, is_synced=lambda: self.router.is_synced)
        control_rpc.add_GatewayControlServicer_to_server(self._activity, self._control)
        self._http = HttpDoor(metrics=self.metrics.text, is_ready=lambda: self._is_ready, pulse=Pulse())
        self._openai = self._openai_door(proxy)
        self._reflectors = self._watches(api)

    def __repr__(self) -> str:
        """Show readiness and what is known."""
        return f"Gateway(ready={self._is_ready}, {self.router!r})"

    async def start(self) -> Ports:
        """Open the ports; nothing is served yet. Raises OSError or RuntimeError when one is taken."""
        host = self._settings.host
        await self._tell(health_pb2.HealthCheckResponse.NOT_SERVING)
        ports = Ports(
            self._add_port(self._inference, f"{host}:{self._settings.port}"),
            self._add_control_port(f"{host}:{self._settings.control_port}"),
            await self._http.start(host, self._settings.metrics_port),
            await self._openai.start(host, self._settings.http_port),
        )
        await self._inference.start()
        await self._control.start()
        _LOG.info("listening: %s", ports)
        return ports

    async def run(self, stop: asyncio.Event) -> None:
        """Watch and serve until `stop` is set, then end in order. Raises what a watch raised: never an outage."""
        watching = asyncio.create_task(self._watch(), name="watch")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await self._end(watching)

    async def _watch(self) -> None:
        """Follow the API server, and serve as soon as everything was listed once.

        Outages after that change nothing: the gateway goes on with what it knows.
        """
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())
            self._watch_files(tasks)
            for reflector in self._reflectors:
                await reflector.synced.wait()
            self.router.is_synced = True
            self._is_ready = True
            await self._tell(health_pb2.HealthCheckResponse.SERVING)
            _LOG.info("serving %d models", len(self.router.catalogue))

    async def _end(self, watching: asyncio.Task[None]) -> None:
        """Say that we go, let clients notice, let running requests end, close everything."""
        self._is_ready = False
        await self._health.enter_graceful_shutdown()
        _LOG.info("ending: %d requests are running, %d held", self.router.pool.in_flight().total(), len(self.holder))
        await asyncio.sleep(self._settings.lame_duck_s)
        await self._drain(self._settings.drain_timeout_s - await self._until_clients_left())
        self._activity.close()  # told to the last request: the operator must not take a busy model for an idle one
        await self._control.stop(_CONTROL_GRACE_S)
        watching.cancel()
        (outcome,) = await asyncio.gather(watching, return_exceptions=True)
        self.evictions.close()
        self.holder.hand_back()
        await self.loads.aclose()
        await self.channels.aclose()
        await self._http.stop()
        if isinstance(outcome, Exception):
            raise outcome

    async def _until_clients_left(self) -> float:
        """Serve on until nobody calls any more; return how many seconds that took."""
        timeout_s = min(LATEST_S, self._settings.drain_timeout_s / 2) if self._settings.lame_duck_s else 0.0
        return await until_quiet(lambda: self._proxy.num_taken, timeout_s=timeout_s)

    async def _drain(self, timeout_s: float) -> None:
        """Take nothing new and let what is here end; what is still held shortly before the end is handed back."""
        last_call_s = max(0.0, timeout_s - min(_HAND_BACK_S, timeout_s / 4))
        handle = asyncio.get_running_loop().call_later(last_call_s, self.holder.hand_back)
        await asyncio.gather(self._inference.stop(timeout_s), self._openai.stop(timeout_s))
        handle.cancel()

    async def _tell(self, status: Any) -> None:
        for service in ("", INFERENCE_SERVICE, GATEWAY_CONTROL_SERVICE):
            await self._health.set(service, status)

    def _server(self, guards: Sequence[Any], service: str, most: Mapping[str, int] | None = None) -> aio.Server:
        """Return a server with health and, if wished, reflection, and with guards; `most` are limits of its own."""
        roomy = {"grpc.max_receive_message_length": MAX_MESSAGE_BYTES + _SPARE_BYTES}
        options = dict(server_options()) | roomy | dict(most or {})
        with patient_threads():  # gRPC starts its own with the first server
            server = aio.server(interceptors=guards, options=list(options.items()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._settings.enable_reflection:
            reflection.enable_server_reflection((service, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        return server

    def _add_port(self, server: aio.Server, address: str) -> int:
        """Let clients in: with TLS, where there is a certificate."""
        if self._identity:
            return server.add_secure_port(address, self._identity.credentials())
        return server.add_insecure_port(address)

    def _add_control_port(self, address: str) -> int:
        """Let the operator in: with certificates of both sides, where there are any."""
        if self._mutual_tls:
            return self._control.add_secure_port(address, self._mutual_tls.server_credentials())
        return self._control.add_insecure_port(address)

    def _openai_door(self, proxy: InferenceProxy) -> OpenAIDoor:
        timeout_s = self._settings.http_timeout_s
        generating = Generating(proxy.serve, self._keys, timeout_s, waiting_s=_WAITING_S)
        app = make_app(self.router, generating, self.metrics.responded)
        tls = self._identity.context if self._identity else None
        return OpenAIDoor(app, timeout_s=timeout_s, max_connections=self._shares.http, tls=tls)

    def _watch_files(self, tasks: asyncio.TaskGroup) -> None:
        """Follow the clients' keys and the certificate, where there are files of them."""
        every_s = self._settings.reload_interval_s
        if self._keys.directory:
            tasks.create_task(watch_files((self._keys.directory,), self._keys.reload, every_s=every_s))
        if self._mutual_tls and self._settings.mutual_tls_dir:
            following = follow_directory(
                self._mutual_tls, self._settings.mutual_tls_dir, every_s=every_s, on_change=self.channels.renew
            )
            tasks.create_task(following)
        if self._identity:
            tasks.create_task(watch_files(self._identity.files, self._identity.reload, every_s=every_s))

    def _watches(self, api: KubeApi) -> Sequence[Reflector]:
        namespaces = self._settings.watch_namespaces
        return (
            Reflector(api, INFERENCE_DEPLOYMENTS, namespaces, on_change=self._on_deployment),
            Reflector(
                api, ENDPOINT_SLICES, namespaces, label_selector=LABEL_DEPLOYMENT, on_change=self.router.on_slice
            ),
        )

    def _on_deployment(self, key: ObjectKey, obj: Resource | None) -> None:
        self.router.on_deployment(key, obj)
        self.loads.on_deployment(key)

    def _on_endpoint(self, was: Endpoint | None, now: Endpoint | None) -> None:
        self.evictions.note(was, now)
        for endpoint in filter(None, (was, now)):
            self.loads.on_pod(endpoint.pod)
