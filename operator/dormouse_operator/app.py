"""Puts the operator together and runs it: one loop, one lease, one worklist. Knows every part, decides nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

from dormouse_kube.api import KubeApi
from dormouse_kube.client import KubeClient
from dormouse_kube.errors import KubeError
from dormouse_operator.activity import ActivityBook, ActivityWatch
from dormouse_operator.election import Leadership
from dormouse_operator.errors import NotLeading
from dormouse_operator.execute import Executor
from dormouse_operator.gateways import Gateways, GrpcGateways
from dormouse_operator.http import serve_http
from dormouse_operator.manifests import WorkerDefaults
from dormouse_operator.metrics import Metrics
from dormouse_operator.observe import Observer
from dormouse_operator.reconcile import Reconciler
from dormouse_operator.resync import find_unseen
from dormouse_operator.scaler import Scaler
from dormouse_operator.settings import Settings, Tokens
from dormouse_operator.watch import Watch, watch
from dormouse_operator.workers import GrpcWorkerControl, WorkerControl
from dormouse_operator.worklist import Worklist

_LOG = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class App:
    """All parts of one operator process over a KubeApi and a WorkerControl."""

    def __init__(
        self,
        kube: KubeApi,
        workers: WorkerControl,
        *,
        settings: Settings,
        tokens: Tokens,
        metrics: Metrics,
        watch: Watch = watch,
        gateways: Gateways | None = None,
    ) -> None:
        """Connect the parts; `watch` differs in tests only. Without gateways no load is known."""
        self._kube = kube
        self._watch = watch
        self._settings = settings
        self.leadership = Leadership(
            kube,
            namespace=settings.namespace,
            name=settings.lease_name,
            pod_uid=settings.pod_uid,
            clock=utc_now,
        )
        metrics.follow_epoch(lambda: self.leadership.epoch)
        defaults = WorkerDefaults(
            settings.worker_image_pull_policy, tokens.operator_token_sha256, tokens.gateway_token_sha256
        )
        observer = Observer(
            kube,
            workers,
            default_image=settings.worker_image,
            agreement_timeout_s=settings.agreement_seconds,
            clock=utc_now,
        )
        clock = asyncio.get_running_loop().time
        self.activities = ActivityBook(clock)
        self._listening = [ActivityWatch(gateways, self.activities).run] if gateways else []
        self.scaler = Scaler(kube, self.activities, authority=self.leadership, clock=clock, reporter=settings.pod_name)
        self.reconciler = Reconciler(
            kube,
            observer,
            Executor(kube, workers, authority=self.leadership, defaults=defaults),
            leader=self.leadership,
            metrics=metrics,
            url=settings.gateway_address,
            reporter=settings.pod_name,
            followers=(self.scaler,),
        )
        self.worklist = Worklist(
            self.reconciler.reconcile,
            clock=asyncio.get_running_loop().time,
            max_concurrent=settings.max_concurrent_reconciles,
            on_error=metrics.count_error,
        )

    async def lead(self, stop: asyncio.Event) -> None:
        """Take the lease and act until `stop` is set or the lease is lost (NotLeading)."""
        await self.leadership.acquire(asyncio.sleep)
        try:
            await _race(
                stop.wait(),
                self.leadership.keep(asyncio.sleep),
                self.worklist.run(),
                self._resync(),
                self.scaler.run(),
                *(listen() for listen in self._listening),
                self._watch(self.worklist.mark, namespaces=self._settings.watch_namespaces, stop=stop),
            )
        finally:
            await self.leadership.release()

    async def _resync(self) -> None:
        """Mark, now and then, what the watch missed."""
        while True:
            try:
                for key in await find_unseen(self._kube, self._settings.watch_namespaces, self.reconciler.seen):
                    self.worklist.mark(key)
            except KubeError as error:
                _LOG.warning("the resync failed and comes again: %s", error)
            await asyncio.sleep(self._settings.resync_seconds)


async def run(settings: Settings, tokens: Tokens) -> int:
    """Run the operator until a signal; return the exit code: 0 after a signal, 1 after losing the lease."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics()
    async with (
        await KubeClient.connect(on_call=metrics.count_call) as kube,
        serve_http(settings.metrics_port, render_metrics=metrics.render, is_ready=lambda: True) as port,
    ):
        _LOG.info("serving /metrics on port %d", port)
        app = App(
            kube,
            GrpcWorkerControl(tokens.operator_token),
            settings=settings,
            tokens=tokens,
            metrics=metrics,
            gateways=_gateways(settings, tokens),
        )
        try:
            await _race(stop.wait(), app.lead(stop))
        except NotLeading as error:
            _LOG.error("stopping: %s", error)
            return 1
    return 0


def _gateways(settings: Settings, tokens: Tokens) -> Gateways | None:
    """Return where gateways are found, None if that is not set."""
    service = settings.gateway_control
    if not service:
        return None
    return GrpcGateways(service, tokens.operator_token, clock=asyncio.get_running_loop().time)


async def _race(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all until the first ends; cancel and await the others; raise what the first raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        for error in _flatten(result):
            raise error


def _flatten(result: object) -> list[BaseException]:
    """Return the errors in what a task gave, those inside a group of errors one by one; cancelling is none."""
    if isinstance(result, BaseExceptionGroup):
        return [error for inner in result.exceptions for error in _flatten(inner)]
    return [result] if isinstance(result, Exception) else []
