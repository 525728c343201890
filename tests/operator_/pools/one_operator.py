"""An operator over fakes, whose passes over pools and members are stepped by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dormouse_kube.errors import KubeError
from dormouse_kube.testing import FakeKube
from dormouse_operator.act.execute import Executor
from dormouse_operator.act.host_memory import HostMemoryBook
from dormouse_operator.act.places import Places
from dormouse_operator.act.pool_effects import PoolEffects
from dormouse_operator.act.pool_orders import PoolOrders
from dormouse_operator.act.slot_devices import SlotDevices
from dormouse_operator.act.writes import Writer
from dormouse_operator.decide.pressure import Budgets
from dormouse_operator.decide.release import Release
from dormouse_operator.decide.seals import Seals
from dormouse_operator.manifests import WorkerDefaults
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import Key, PoolKey
from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.observe.nodes import NodeBook
from dormouse_operator.observe.observer import Observer
from dormouse_operator.observe.pool_observer import PoolObserver
from dormouse_operator.observe.worker_statuses import AskedStatuses
from dormouse_operator.pool_reconcile import PoolReconciler
from dormouse_operator.reconcile import PassFailed, Reconciler
from dormouse_operator.testing.feed import CachePump
from dormouse_operator.testing.kube import SteppedClock
from dormouse_operator.testing.pooled import PooledWorkers
from dormouse_operator.watch.cache import Cache
from tests.operator_.conftest import FakeLeader

POOL = PoolKey("team", "gpus")


@dataclass
class Operator:
    """What an operator keeps in memory: all of it may be lost between any two steps."""

    kube: FakeKube
    workers: PooledWorkers
    clock: SteppedClock
    leader: FakeLeader
    node_percent: int = 0  # of a node's allocatable memory that members' pods may take

    def __post_init__(self):
        self.cache = Cache()
        self.pump = CachePump(self.kube, self.cache)
        self.activities = ActivityBook(lambda: self.clock().timestamp())
        self.metrics = Metrics()
        self.marked = []  # members that the pool's pass had looked at, and who waited by the status that they then read
        release = Release(default_image="worker:1", operator_keys=("aa",), seals=Seals(("seed",)))
        self.statuses = AskedStatuses(self.workers)
        self.host_memory = HostMemoryBook(
            Budgets(max_node_percent=self.node_percent),
            clock=self.clock,
            mark=lambda _: None,
            nodes=NodeBook(self.kube, clock=lambda: self.clock().timestamp()) if self.node_percent else None,
        )
        writer = Writer(self.kube, self.cache, self.leader)
        observer = Observer(
            self.kube,
            self.cache,
            self.statuses,
            release=release,
            clock=self.clock,
            activities=self.activities,
            host_memory=self.host_memory,
            epoch=lambda: self.leader.epoch,
        )
        executor = Executor(
            writer,
            self.workers,
            authority=self.leader,
            defaults=WorkerDefaults("IfNotPresent", "aa", "bb"),
            places=Places(self.cache),
            seals=Seals(("seed",)),
        )
        self.seconds = 0.0
        self.members = Reconciler(
            writer,
            observer,
            executor,
            release=release,
            leader=self.leader,
            metrics=self.metrics,
            reporter="me",
            listeners=[self.host_memory],
            monotonic=lambda: self.seconds,
        )
        self.pools = PoolReconciler(
            writer,
            PoolObserver(
                self.kube, self.cache, self.statuses, release=release, activities=self.activities, clock=self.clock
            ),
            PoolOrders(
                PoolEffects(writer, self.workers, self.leader),
                clock=lambda: self.clock().timestamp(),
                on_done=lambda *_: None,
            ),
            devices=SlotDevices(writer, image="worker:1", defaults=WorkerDefaults("IfNotPresent", "aa", "bb")),
            leader=self.leader,
            metrics=self.metrics.pools,
            mark=self._mark,
            reporter="me",
        )

    def _mark(self, key):
        pool = self.cache.pool_snapshot(POOL)
        waiting = (pool.pool.get("status") or {}).get("waiting") or () if pool else ()
        self.marked.append((key.name, {item["name"] for item in waiting}))

    async def look_at_members(self):
        """Make one pass over each deployment."""
        self.seconds += 3.0
        for key in [key for key, _ in self.cache.versions() if isinstance(key, Key)]:
            self.pump.pump()
            await _surviving(self.members.reconcile(key))

    async def look_at_pool(self, pool=POOL):
        """Make one pass over the pool, and let what it began come as far as it does without waiting."""
        self.pump.pump()
        after_s = await _surviving(self.pools.reconcile(pool))
        for _ in range(30):
            await asyncio.sleep(0)
        self.pump.pump()
        return after_s


async def _surviving(coroutine):
    try:
        return await coroutine
    except (PassFailed, KubeError):
        return 0.5
