"""One operator as a process: signals, connections, the lease's thread, the HTTP door. Knows nothing of pods."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from dormouse_api.mutual_tls import MutualTls
from dormouse_kube.api import KubeApi
from dormouse_kube.client import KubeClient
from dormouse_operator import logs
from dormouse_operator.act.workers import GrpcWorkerControl
from dormouse_operator.app import App, utc_now
from dormouse_operator.errors import NotLeading
from dormouse_operator.http import serve_http
from dormouse_operator.lead.election import Leadership
from dormouse_operator.lead.lease_thread import LeaseThread, Pulse
from dormouse_operator.metrics import Metrics
from dormouse_operator.observe.gateways import Gateways, GrpcGateways
from dormouse_operator.race import race
from dormouse_operator.seeds import Seeds
from dormouse_operator.settings import Settings

_LOG = logging.getLogger(__name__)


async def run(settings: Settings, seeds: Seeds) -> int:
    """Run the operator until a signal; return the exit code: 0 after a signal, 1 after losing the lease."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics, pulse = Metrics(), Pulse()

    async def connect() -> KubeClient:
        return await KubeClient.connect(on_call=metrics.count_call)

    async with await connect() as kube, LeaseThread(connect, _leader_of(settings, pulse)) as candidate:
        logs.set_up(settings.log_level, settings.log_format, epoch=lambda: candidate.epoch)
        tls = MutualTls() if settings.mutual_tls else None
        workers = GrpcWorkerControl(seeds.tickets_to_workers(), tls=tls)
        gateways = _gateways(settings, seeds, tls)
        app = App(kube, workers, candidate, settings=settings, seeds=seeds, metrics=metrics, gateways=gateways, tls=tls)
        async with serve_http(
            settings.metrics_port, render_metrics=metrics.render, is_ready=lambda: app.is_ready
        ) as port:
            _LOG.info("serving /metrics on port %d", port)
            try:
                await race(stop.wait(), pulse.run(), app.run(stop))
            except NotLeading as error:
                _LOG.error("stopping: %s", error)
                return 1
    return 0


def _gateways(settings: Settings, seeds: Seeds, tls: MutualTls | None) -> Gateways | None:
    """Return where gateways are found, None if that is not set."""
    service = settings.gateway_control
    if not service:
        return None
    return GrpcGateways(service, seeds.tickets_to_gateways(), clock=asyncio.get_running_loop().time, tls=tls)


def _leader_of(settings: Settings, pulse: Pulse) -> Callable[[KubeApi], Leadership]:
    """Return what makes the Leadership over a client."""
    return lambda kube: Leadership(
        kube,
        namespace=settings.namespace,
        name=settings.lease_name,
        pod_uid=settings.pod_uid,
        clock=utc_now,
        is_well=pulse.is_felt,
    )
