"""The front of a pod that follows: it keeps its ranks and says how they are. Nobody sends it requests or commands."""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]  # made only where asyncio is there
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from dormouse_api import __version__
from dormouse_api.auth import RequireRole
from dormouse_api.limits import server_options
from dormouse_api.names import CONTROL_SERVICE, INFERENCE_SERVICE, Role
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_worker.common.ipc import State
from dormouse_worker.front.api.answers import answered
from dormouse_worker.front.api.http import METRICS_TYPE, Answer, HttpDoor
from dormouse_worker.front.api.listening import listen, plain_host, port_error
from dormouse_worker.front.certificate import Certificate
from dormouse_worker.front.engine.wire import to_failure
from dormouse_worker.front.flags.settings import FrontSettings
from dormouse_worker.front.follower.rank_supervisor import RankKeeper

logger = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
LEADER_END_S = 5.0  # what the leader gets to hear of our end, before it drains, and to end itself
EXIT_STOPPED = 0
Context = aio.ServicerContext[Any, Any]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class FollowerControl(rpc.WorkerControlServicer):
    """Says how this pod's ranks are; every other method is the leader's (UNIMPLEMENTED here)."""

    def __init__(self, settings: FrontSettings, keeper: RankKeeper, pod: str) -> None:
        self._settings = settings
        self._keeper = keeper
        self._pod = pod

    @answered
    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.WorkerStatus:
        """Return what holds now."""
        del request, context  # the status depends on neither
        return self.status()

    async def WatchStatus(self, request: pb.GetStatusRequest, context: Context) -> AsyncIterator[pb.WorkerStatus]:
        """Stream the status; ends when the front does."""
        del request, context  # the status depends on neither
        async for status in self._keeper.changes.stream(self.status, min_interval_s=0.0):
            yield status

    def status(self) -> pb.WorkerStatus:
        """Return the status: READY once the leader has welcomed all of this pod's ranks."""
        keeper = self._keeper
        failure = to_failure(keeper.last_failure) if keeper.last_failure else None
        return pb.WorkerStatus(
            state=pb.WorkerState.Value(f"WORKER_STATE_{keeper.state}"),
            pod_uid=self._settings.pod_uid,
            settings_digest=self._settings.settings_digest,
            version=__version__,
            node_rank=self._settings.place.node_rank,
            ranks=[pb.RankStatus(rank=rank, pod=self._pod) for rank in keeper.ranks],
            failure=failure if keeper.state is State.FAILED else None,
            last_engine_failure=failure,
        )


class FollowerFront:
    """Everything composed. Use: start, run until stopped, which returns the exit code."""

    def __init__(self, settings: FrontSettings, keeper: RankKeeper, pod: str) -> None:
        """Needs a running event loop. Raises TlsError where the certificate cannot be used."""
        self._settings = settings
        self._keeper = keeper
        self._certificate = Certificate(settings.mutual_tls_dir)
        self._health = health.HealthServicer()
        proofs = settings.proofs()
        guards = [RequireRole(proofs, {CONTROL_SERVICE: Role.OPERATOR}), *self._certificate.guards(proofs)]
        self._inference, self._control = self._server(guards), self._server(guards)
        control = FollowerControl(settings, keeper, pod)  # type: ignore[abstract]  # the rest answers UNIMPLEMENTED
        rpc.add_WorkerControlServicer_to_server(control, self._control)
        self._http = HttpDoor({"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz})
        self._registry = CollectorRegistry()
        joined = Gauge(
            "dormouse_ranks_joined", "1 while all ranks of this pod are in a group.", registry=self._registry
        )
        joined.set_function(lambda: float(keeper.state is State.READY))

    def __repr__(self) -> str:
        return f"FollowerFront({self._keeper!r})"

    async def start(self) -> tuple[int, int, int]:
        """Open the ports, and return them: health, control, http. Raises RuntimeError when one is taken."""
        settings = self._settings
        for service in ("", CONTROL_SERVICE):
            await self._health.set(service, SERVING)
        await self._health.set(INFERENCE_SERVICE, NOT_SERVING)  # whoever balances requests finds no worker here
        ports = (
            self._listen(self._inference, settings.port, "--port"),
            self._listen(self._control, settings.control_port, "--control-port"),
            await self._listen_http(),
        )
        self._certificate.follow()
        await self._inference.start()
        await self._control.start()
        logger.info("following", extra={"fields": {"ports": ports, "ranks": list(self._keeper.ranks)}})
        return ports

    async def run(self, stop: asyncio.Event) -> int:
        """Keep the ranks until `stop`, and then until their leader is done; end them and return the exit code."""
        keeping = asyncio.create_task(self._keeper.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                await keeping  # raises OSError where no process can be started
                await stopping  # a device is ill: stay, and say so
            else:
                await self._part(keeping)
            return EXIT_STOPPED
        finally:
            stopping.cancel()
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self.close()

    async def _part(self, keeping: asyncio.Task[None]) -> None:
        """Wait until the leader has let go of the ranks, as long as its requests may take to end."""
        if self._keeper.part():
            timeout_s = self._settings.drain_timeout_s + LEADER_END_S
            logger.info("ending", extra={"fields": {"until the leader ends, or for (s)": timeout_s}})
            await asyncio.wait({keeping}, timeout=timeout_s)

    async def close(self) -> None:
        """Close the ports; safe after a failed start."""
        self._certificate.close()
        self._keeper.changes.close()
        await asyncio.gather(self._inference.stop(STOP_GRACE_S), self._control.stop(STOP_GRACE_S))
        await self._http.stop()

    def _listen(self, server: aio.Server, port: int, flag: str) -> int:
        """Bind. Raises RuntimeError naming the flag."""
        return listen(partial(self._certificate.add_port, server), self._settings.host, port, flag)

    async def _listen_http(self) -> int:
        port = self._settings.metrics_port
        try:
            return await self._http.start(plain_host(self._settings.host), port)
        except OSError as error:
            raise port_error("--metrics-port", port, error) from error

    def _server(self, guards: Sequence[Any]) -> aio.Server:
        limit = self._settings.max_open_calls
        server = aio.server(interceptors=guards, options=list(server_options()), maximum_concurrent_rpcs=limit)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    def _metrics(self) -> Answer:
        return Answer(200, generate_latest(self._registry) + self._certificate.text(), METRICS_TYPE)

    def _healthz(self) -> Answer:
        return Answer(200, b"ok\n")

    def _readyz(self) -> Answer:
        if self._keeper.state is State.READY:
            return Answer(200, b"ok\n")
        if self._keeper.state is State.DRAINING:
            return Answer(503, b"the pod ends\n")
        failure = self._keeper.last_failure
        return Answer(503, f"ranks {list(self._keeper.ranks)} wait for their leader; {failure}\n".encode())
