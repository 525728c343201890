"""Puts the operator together and runs it: one loop, one lease, one worklist. Knows every part, decides nothing.

Every operator watches, also one that waits for the lease: so it knows everything when its turn comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from dormouse_api.mutual_tls import MutualTls
from dormouse_api.quotas import DayUse
from dormouse_kube.api import KubeApi
from dormouse_operator import logs, memory
from dormouse_operator.act.execute import Executor
from dormouse_operator.act.host_memory import HostMemoryBook
from dormouse_operator.act.neighbours import NeighbourBook
from dormouse_operator.act.places import Places
from dormouse_operator.act.pool_effects import PoolEffects
from dormouse_operator.act.pool_orders import PoolOrders
from dormouse_operator.act.scaler import Scaler
from dormouse_operator.act.slot_devices import SlotDevices
from dormouse_operator.act.workers import WorkerControl
from dormouse_operator.act.writes import Writer
from dormouse_operator.adapter_reconcile import AdapterReconciler
from dormouse_operator.certificates.identities import Identities
from dormouse_operator.decide.release import Release
from dormouse_operator.derived_settings import budgets_of, certificate_settings, release_of, worker_defaults
from dormouse_operator.key_reconcile import KeyReconciler
from dormouse_operator.limits.counter import LimitCounter
from dormouse_operator.limits.streams import LimitStreams
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import AdaptersKey, AnyKey, Key, PoolKey
from dormouse_operator.model.pools import Replica
from dormouse_operator.observe.activity import ActivityBook, ActivityWatch
from dormouse_operator.observe.adapters import AdapterBook
from dormouse_operator.observe.gateways import Gateways
from dormouse_operator.observe.nodes import NodeBook
from dormouse_operator.observe.observer import Observer
from dormouse_operator.observe.pool_observer import PoolObserver
from dormouse_operator.observe.worker_statuses import FollowedStatuses
from dormouse_operator.pool_reconcile import PoolReconciler
from dormouse_operator.race import race
from dormouse_operator.reconcile import Leader, Reconciler
from dormouse_operator.seeds import Seeds
from dormouse_operator.settings import Settings
from dormouse_operator.watch.cache import Cache
from dormouse_operator.watch.feed import Feed
from dormouse_operator.watch.kopf_watch import Watch, watch
from dormouse_operator.watch.model_names import Claims
from dormouse_operator.watch.resync import find_unseen
from dormouse_operator.worklist import Worklist

_RELEASE_S = 2.0


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class Candidate(Leader, Protocol):
    """One who may come to lead."""

    @property
    def leads(self) -> bool:
        """Return whether it may act now."""
        ...

    async def acquire(self) -> None:
        """Wait until it leads."""
        ...

    async def keep(self) -> None:
        """Go on leading. Raises NotLeading."""
        ...

    async def release(self) -> None:
        """Let the next one lead."""
        ...


@dataclass(frozen=True, slots=True)
class _Hands:
    """What both kinds of pass act with."""

    kube: KubeApi
    workers: WorkerControl
    writer: Writer
    release: Release


class App:
    """All parts of one operator process over a KubeApi and a WorkerControl."""

    def __init__(  # noqa: PLR0913  # three worlds, the settings, two doors that tests replace
        self,
        kube: KubeApi,
        workers: WorkerControl,
        candidate: Candidate,
        *,
        settings: Settings,
        seeds: Seeds,
        metrics: Metrics,
        watch: Watch = watch,
        gateways: Gateways | None = None,
        tls: MutualTls | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Connect the parts; `watch` and `now` differ in tests only. Without gateways no load is known.

        `tls` is what workers and gateways are called with, where settings.mutual_tls is set: it gets its certificate.
        """
        self._watch = watch
        self._settings = settings
        self._metrics = metrics
        self.candidate = candidate
        self._acts = False
        self._clock = asyncio.get_running_loop().time
        self._now = now
        self.cache = Cache(claims=Claims(settings.names), on_members=self._mark, on_adapters=self._mark)
        self.worklist = Worklist(
            self._reconcile,
            clock=self._clock,
            max_concurrent=settings.max_concurrent_reconciles,
            on_error=metrics.count_error,
        )
        self.feed = Feed(kube, self.cache, namespaces=settings.watch_namespaces, mark=self._mark)
        self.statuses = FollowedStatuses(workers, self.worklist.mark)
        self.activities = ActivityBook(self._clock, self._mark_all)
        self.limits = LimitCounter(clock=self._clock, wall=lambda: now().timestamp(), base=self._recorded_day)
        self._listening = (
            [ActivityWatch(gateways, self.activities).run, LimitStreams(gateways, self.limits).run] if gateways else []
        )
        budgets, nodes = budgets_of(settings), NodeBook(kube, clock=self._clock)
        self.host_memory = HostMemoryBook(budgets, clock=now, mark=self._mark, nodes=nodes) if budgets else None
        self.neighbours = NeighbourBook(self._mark)
        self.scaler = Scaler(
            kube, self.activities, authority=candidate, clock=self._clock, reporter=settings.pod_name, mark=self._mark
        )
        self.identities = Identities(kube, tls, certificate_settings(settings), authority=candidate) if tls else None
        hands = _Hands(kube, workers, Writer(kube, self.cache, candidate), release_of(settings, seeds))
        self.reconciler = self._make_reconciler(hands, seeds)
        self.pools = self._make_pools(hands, seeds)
        self.adapters = AdapterReconciler(hands.writer, self.cache, clock=now, reporter=settings.pod_name)
        self.keys = KeyReconciler(kube, hands.writer, self.limits.days, namespaces=settings.watch_namespaces, clock=now)
        self._follow(tls)

    def _recorded_day(self, key: str) -> DayUse | None:
        return self.keys.day_of(key)

    def _make_reconciler(self, hands: _Hands, seeds: Seeds) -> Reconciler:
        observer = Observer(
            hands.kube,
            self.cache,
            self.statuses,
            release=hands.release,
            clock=self._now,
            activities=self.activities,
            host_memory=self.host_memory,
            neighbours=self.neighbours,
            mutual_tls=self.identities is not None,
            epoch=lambda: self.candidate.epoch,
            adapters=AdapterBook(hands.workers),
            contest=self.scaler.contest,
        )
        executor = Executor(
            hands.writer,
            hands.workers,
            authority=self.candidate,
            defaults=worker_defaults(self._settings, seeds),
            places=Places(self.cache),
            seals=seeds.seals,
        )
        return Reconciler(
            hands.writer,
            observer,
            executor,
            release=hands.release,
            leader=self.candidate,
            metrics=self._metrics,
            url=self._settings.gateway_address,
            reporter=self._settings.pod_name,
            monotonic=self._clock,
            listeners=[each for each in (self.scaler, self.host_memory, self.neighbours, self.identities) if each],
        )

    def _make_pools(self, hands: _Hands, seeds: Seeds) -> PoolReconciler:
        observer = PoolObserver(
            hands.kube,
            self.cache,
            self.statuses,
            release=hands.release,
            activities=self.activities,
            clock=self._now,
        )
        effects = PoolEffects(hands.writer, hands.workers, self.candidate)
        return PoolReconciler(
            hands.writer,
            observer,
            PoolOrders(effects, clock=self._clock, on_done=self._order_ended),
            devices=SlotDevices(
                hands.writer, image=hands.release.default_image, defaults=worker_defaults(self._settings, seeds)
            ),
            leader=self.candidate,
            metrics=self._metrics.pools,
            mark=self._mark,
            reporter=self._settings.pod_name,
        )

    def _follow(self, tls: MutualTls | None) -> None:
        """Have the metrics read what is true when they are asked for."""
        metrics, candidate, identities = self._metrics, self.candidate, self.identities
        if tls and identities:
            metrics.follow_certificates(
                {"operator": lambda: tls.expiry_s, "authority": lambda: identities.authority_expiry_s}
            )
        metrics.follow_lease(lambda: candidate.epoch, lambda: candidate.leads)
        metrics.follow_queue(lambda: self.worklist.waiting_s)
        metrics.follow_watches(self.feed.ages_s)

    @property
    def is_ready(self) -> bool:
        """Return whether everything is known that is needed to act."""
        return self.cache.is_complete

    async def run(self, stop: asyncio.Event) -> None:
        """Watch, wait for the lease, and act until `stop` is set or the lease is lost (NotLeading)."""
        await race(
            stop.wait(),
            self._lead(),
            self.feed.run(),
            self.keys.follow(),
            self._watch(self.feed, namespaces=self._settings.watch_namespaces, on_call=self._metrics.count_call),
        )

    async def _lead(self) -> None:
        """Take the lease, look through everything, and act."""
        await self.feed.filled.wait()
        await self.candidate.acquire()
        try:
            self._acts = True
            self.worklist.sweep(key for key, _ in self.cache.versions())
            listening = [self.keys.run(), *(listen() for listen in self._listening)]
            if self.identities:
                listening.append(self.identities.run())
            await race(self.candidate.keep(), self.worklist.run(), self._resync(), self.scaler.run(), *listening)
        finally:
            with suppress(TimeoutError):  # then it runs out by itself
                async with asyncio.timeout(_RELEASE_S):
                    await self.candidate.release()
            await self.pools.stop()
            await self.statuses.close()

    def _mark(self, key: AnyKey) -> None:
        """Have a changed deployment, or pool, looked at; whoever comes to act looks through all of them first.

        A new one comes after those that are under way: of a thousand applied at once the first are soon Ready, and few
        workers are followed at a time.
        """
        if self._acts:
            is_known = not isinstance(key, Key) or key in self.reconciler.seen
            self.worklist.mark(key) if is_known else self.worklist.sweep([key])

    def _order_ended(self, pool: PoolKey, replica: Replica, after_s: float) -> None:
        """Have a pool looked at again, and hear its workers anew: one of them did what it was told, or refused."""
        self.statuses.refresh(pool)
        self.statuses.refresh(replica.key)
        if self._acts:
            self.worklist.mark(pool, after_s)

    def _mark_all(self, keys: Collection[Key]) -> None:
        """Have deployments looked at whose load is news: of one at once, of many after whatever changes meanwhile."""
        if not self._acts:
            return
        for pool in {pool for key in keys for pool in self.cache.members.pools_of(key)}:
            self.worklist.mark(pool)
        if len(keys) == 1:
            self.worklist.mark(next(iter(keys)))
        else:
            self.worklist.sweep(keys)

    async def _reconcile(self, key: AnyKey) -> float | None:
        with logs.log_object(str(key)):
            if isinstance(key, PoolKey):
                return await self.pools.reconcile(key)
            if isinstance(key, AdaptersKey):
                return await self.adapters.reconcile(key)
            return await self.reconciler.reconcile(key)

    async def _resync(self) -> None:
        """Mark, now and then, what was missed, and give back the memory that what came before has left."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            self.worklist.sweep(find_unseen(self.cache, [self.reconciler.seen, self.pools.seen, self.adapters.seen]))
            await asyncio.to_thread(memory.trim)
