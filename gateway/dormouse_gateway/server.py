"""The gateway as one thing: two gRPC ports, two HTTP ports, two watches. Owns their start and end."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from starlette.applications import Starlette

from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_api.v1 import gateway_control_pb2_grpc as control_rpc
from dormouse_gateway.call import UNTRACED, Traces
from dormouse_gateway.clients.counting import Counting
from dormouse_gateway.control import GatewayControl
from dormouse_gateway.descriptors import limit, share
from dormouse_gateway.grpc_doors import GrpcDoors
from dormouse_gateway.hold.holder import Holder
from dormouse_gateway.http import HttpDoor, Pulse
from dormouse_gateway.image_room import ImageRoom
from dormouse_gateway.leaving import LATEST_S, until_quiet
from dormouse_gateway.load_watch import LoadWatch
from dormouse_gateway.migrate.evictions import Evictions
from dormouse_gateway.migrate.kv_source import kv_sources
from dormouse_gateway.migrate.migrator import Migrator
from dormouse_gateway.model import Endpoint
from dormouse_gateway.openai.app import make_app
from dormouse_gateway.openai.door import OpenAIDoor
from dormouse_gateway.openai.fetching import ImageFetcher
from dormouse_gateway.openai.generating import Generating
from dormouse_gateway.partners import Partners, open_partners
from dormouse_gateway.picker.service import Core, Proofs
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
from dormouse_gateway.watches import WatchedFiles, Watches
from dormouse_gateway.workers.channels import Channels
from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_DEPLOYMENTS, INFERENCE_KEYS, KubeApi, Resource
from dormouse_kube.reflector import ObjectKey, Reflector

_LOG = logging.getLogger(__name__)

_CONTROL_GRACE_S = 1.0  # the streams there have been told to end
_WAITING_S = 10.0  # between two comments to an HTTP client whose request is held
_HAND_BACK_S = 1.0  # so long before the end of the drain: time for the refusals to reach the clients


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the gateway listens."""

    inference: int
    control: int
    http: int
    openai: int
    picker: int | None = None  # None = Envoy cannot ask
    scaler: int | None = None  # None = KEDA cannot ask


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
        self._mutual_tls = read_mutual_tls(settings)
        self.metrics = Metrics()
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
        sources = kv_sources(seeds.introductions())
        self.migrator = Migrator(settings.moving, self.evictions, count=self.metrics.migrated, source_of=sources)
        self.holder = Holder(
            self.router,
            hold_settings(settings),
            on_first=self.loads.on_deployment,
            on_unwanted=traces.on_unwanted(self.router.pool.is_ready),
            on_end=self.metrics.held,
        )
        self._is_ready = False
        self._proxy = self._make_proxy(seeds, rng, traces)
        self._grpc = self._make_grpc(seeds)
        self._http = HttpDoor(metrics=self.metrics.text, is_ready=lambda: self._is_ready, pulse=Pulse())
        app = self._make_app(self._proxy)
        self._openai = self._openai_door(app)
        self._partners = self._make_partners(app, seeds)
        self._watches = self._make_watches(api)
        self._follow()

    def _follow(self) -> None:
        """Have metrics and evictions told of what changes."""
        self.metrics.watch(self.router)
        self.router.on_endpoint = self._on_endpoint
        if tls := self._mutual_tls:
            self.metrics.follow_certificate(lambda: tls.expiry_s)

    def _make_proxy(self, seeds: Seeds, rng: random.Random | None, traces: Traces) -> InferenceProxy:
        return InferenceProxy(
            self.router,
            self.channels,
            self.metrics,
            self.holder,
            migrator=self.migrator,
            has_role=bool(seeds.gateway),
            keys=self._keys,
            salts=seeds.salts(),
            default_deadline_s=self._settings.default_deadline_s,
            rng=rng,
            traces=traces,
            images=ImageRoom(self._settings.max_image_bytes, self._settings.kept_image_bytes, seeds.salts()),
        )

    def _make_grpc(self, seeds: Seeds) -> GrpcDoors:
        doors = GrpcDoors(
            self._settings,
            self._identity,
            self._mutual_tls,
            seeds.proofs(self._settings.pod_ips),
            max_connections=self._shares.grpc,
        )
        doors.inference.add_generic_rpc_handlers((self._proxy.handler(),))
        self._activity = GatewayControl(
            self.router.activity, self._keys.counting, is_synced=lambda: self.router.is_synced
        )
        control_rpc.add_GatewayControlServicer_to_server(self._activity, doors.control)
        return doors

    @property
    def counting(self) -> Counting:
        """Return what keys with limits used here."""
        return self._keys.counting

    def __repr__(self) -> str:
        """Show readiness and what is known."""
        return f"Gateway(ready={self._is_ready}, {self.router!r})"

    async def start(self) -> Ports:
        """Open the ports; nothing is served yet. Raises OSError or RuntimeError when one is taken."""
        host = self._settings.host
        await self._grpc.tell(is_serving=False)
        ports = Ports(
            self._grpc.add_port(),
            self._grpc.add_control_port(),
            await self._http.start(host, self._settings.metrics_port),
            await self._openai.start(host, self._settings.http_port),
            *await self._partners.start(host, self._settings.picker_port, self._settings.scaler_port),
        )
        await self._grpc.start()
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
            self._watches.start(tasks)
            await self._watches.synced()
            self.router.is_synced = True
            self._is_ready = True
            await self._grpc.tell(is_serving=True)
            await self._partners.tell_that_it_serves()
            _LOG.info("serving %d models", len(self.router.catalogue))

    async def _end(self, watching: asyncio.Task[None]) -> None:
        """Say that we go, let clients notice, let running requests end, close everything."""
        self._is_ready = False
        await self._grpc.say_that_it_ends()
        await self._partners.say_that_it_ends()
        _LOG.info("ending: %d requests are running, %d held", self.router.pool.in_flight().total(), len(self.holder))
        await asyncio.sleep(self._settings.lame_duck_s)
        await self._drain(self._settings.drain_timeout_s - await self._until_clients_left())
        self._activity.close()  # told to the last request: the operator must not take a busy model for an idle one
        await self._grpc.control.stop(_CONTROL_GRACE_S)
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
        return await until_quiet(self._num_taken, timeout_s=timeout_s)

    @property
    def picker_taken(self) -> int:
        """Return about how many requests Envoy asked so far."""
        return self._partners.num_taken

    def _num_taken(self) -> int:
        return self._proxy.num_taken + self.picker_taken

    async def _drain(self, timeout_s: float) -> None:
        """Take nothing new and let what is here end; what is still held shortly before the end is handed back."""
        last_call_s = max(0.0, timeout_s - min(_HAND_BACK_S, timeout_s / 4))
        handle = asyncio.get_running_loop().call_later(last_call_s, self.holder.hand_back)
        stopping = (self._grpc.inference.stop(timeout_s), self._openai.stop(timeout_s))
        await asyncio.gather(*stopping, self._partners.stop_picker(timeout_s))
        await self._partners.stop_scaler()
        handle.cancel()

    def _make_app(self, proxy: InferenceProxy) -> Starlette:
        generating = Generating(
            proxy.serve,
            self._keys,
            self._settings.http_timeout_s,
            waiting_s=_WAITING_S,
            images=proxy.images,
            fetcher=ImageFetcher(self._settings.image_hosts),
        )
        return make_app(self.router, generating, self.metrics.responded)

    def _openai_door(self, app: Starlette) -> OpenAIDoor:
        tls = self._identity.context if self._identity else None
        timeout_s = self._settings.http_timeout_s
        return OpenAIDoor(app, timeout_s=timeout_s, max_connections=self._shares.http, tls=tls)

    def _make_partners(self, app: Starlette, seeds: Seeds) -> Partners:
        keys, canaries = self._keys, self._proxy.canaries
        core = Core(router=self.router, holder=self.holder, keys=keys, metrics=self.metrics, app=app, canaries=canaries)
        proofs = Proofs(seeds.tickets(), seeds.salts())
        return open_partners(self._settings, core, proofs, identity=self._identity, max_calls=self._shares.http)

    def _make_watches(self, api: KubeApi) -> Watches:
        namespaces = self._settings.watch_namespaces
        slices = Reflector(
            api, ENDPOINT_SLICES, namespaces, label_selector=LABEL_DEPLOYMENT, on_change=self.router.on_slice
        )
        return Watches(
            (
                Reflector(api, INFERENCE_DEPLOYMENTS, namespaces, on_change=self._on_deployment),
                Reflector(api, INFERENCE_KEYS, namespaces, is_optional=True, on_change=self._keys.on_object),
                slices,
            ),
            self._watched_files(),
            self._keys.review,
        )

    def _watched_files(self) -> WatchedFiles:
        return WatchedFiles(
            self._keys,
            self._identity,
            self._mutual_tls,
            mutual_tls_dir=self._settings.mutual_tls_dir,
            every_s=self._settings.reload_interval_s,
            on_certificate=self.channels.renew,
        )

    def _on_deployment(self, key: ObjectKey, obj: Resource | None) -> None:
        self.router.on_deployment(key, obj)
        self.loads.on_deployment(key)

    def _on_endpoint(self, was: Endpoint | None, now: Endpoint | None) -> None:
        self.evictions.note(was, now)
        for endpoint in filter(None, (was, now)):
            self.loads.on_pod(endpoint.pod)
