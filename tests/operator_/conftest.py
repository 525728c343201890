"""A whole operator over fakes: cluster, node, workers and clock, stepped by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from dormouse_api.names import READINESS_GATE
from dormouse_kube.api import EVENTS, INFERENCE_ADAPTERS, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import KubeError
from dormouse_kube.testing import FakeKube
from dormouse_operator.act.execute import Executor
from dormouse_operator.act.host_memory import HostMemoryBook
from dormouse_operator.act.neighbours import NeighbourBook
from dormouse_operator.act.places import Places
from dormouse_operator.act.scaler import Scaler
from dormouse_operator.act.writes import Writer
from dormouse_operator.adapter_reconcile import AdapterReconciler
from dormouse_operator.decide.pressure import Budgets
from dormouse_operator.decide.release import Release
from dormouse_operator.decide.seals import Seals
from dormouse_operator.decide.situation import Situation
from dormouse_operator.errors import NotLeading
from dormouse_operator.manifests import WorkerDefaults
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import AdaptersKey, Arrows, Key, Picker, WorkerState
from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.observe.adapters import AdapterBook
from dormouse_operator.observe.nodes import NodeBook
from dormouse_operator.observe.observer import Observer
from dormouse_operator.observe.worker_statuses import AskedStatuses
from dormouse_operator.reconcile import PassFailed, Reconciler
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.feed import CachePump
from dormouse_operator.testing.kube import FakeNode, SteppedClock
from dormouse_operator.testing.workers import FakeWorkers
from dormouse_operator.watch.cache import Cache


@dataclass
class FakeLeader:
    """Leads until a test says otherwise."""

    epoch: int = 1
    leads: bool = True

    def check(self) -> None:
        if not self.leads:
            raise NotLeading("another holds the lease")

    async def raise_above(self, epoch: int) -> None:
        self.epoch = epoch + 1


class Told:
    """A listener that remembers what it saw last, and whose spec could not be read."""

    def __init__(self) -> None:
        self.rejections: set[tuple[Key, str]] = set()
        self.situation: Situation | None = None

    def saw(self, situation: Situation) -> None:
        """Take it as any other."""
        self.situation = situation

    def forget(self, key: Key) -> None:
        """Take it as any other."""

    def rejected(self, key: Key, uid: str) -> None:
        """Remember it."""
        self.rejections.add((key, uid))


@dataclass
class Rig:
    """The operator's pass over fakes. `settle` lets cluster and operator act in turn until nothing changes."""

    clock: SteppedClock = field(default_factory=SteppedClock)
    default_image: str = "worker:1"
    operator_keys: tuple[str, ...] = ("aa",)  # public
    seeds: tuple[str, ...] = ("seed",)
    leader: FakeLeader = field(default_factory=FakeLeader)
    errors: list[Exception] = field(default_factory=list)
    key: Key = field(default_factory=lambda: Key("team", "tiny"))
    seconds: float = 0.0  # of the clock by which writes are paced
    pause_s: float = 3.0  # between passes: nothing is put off
    host_limit_bytes: int = 2**50  # of copies of sleeping models, per node
    node_percent: int = 0  # of a node's allocatable memory that models' pods may take
    arrows: Arrows | None = None  # what the release lets workers connect to
    picker: Picker | None = None  # where other people's gateways ask
    marked: list[Key] = field(default_factory=list)  # who is to be looked at for lack of host memory

    def __post_init__(self) -> None:
        self.kube = FakeKube(clock=self.clock)
        self.workers = FakeWorkers()
        self.node = FakeNode(self.kube, self.workers, self.clock)
        self.metrics = Metrics()
        self.restart_operator()

    def restart_operator(self) -> None:
        """Lose everything that is only in memory."""
        self.cache = Cache()
        self.pump = CachePump(self.kube, self.cache)
        self.activities = ActivityBook(lambda: self.clock().timestamp())
        self.host_memory = HostMemoryBook(
            Budgets(max_sleeping_bytes=self.host_limit_bytes, max_node_percent=self.node_percent),
            clock=self.clock,
            mark=self.marked.append,
            nodes=NodeBook(self.kube, clock=lambda: self.clock().timestamp()) if self.node_percent else None,
        )
        self.neighbours = NeighbourBook(self.marked.append)
        release = Release(
            default_image=self.default_image,
            operator_keys=self.operator_keys,
            seals=Seals(self.seeds),
            arrows=self.arrows,
            picker=self.picker,
        )
        self.scaler = Scaler(
            self.kube,
            self.activities,
            authority=self.leader,
            clock=lambda: self.clock().timestamp(),
            reporter="me",
            now=self.clock,
            mark=self.marked.append,
        )
        observer = Observer(
            self.kube,
            self.cache,
            AskedStatuses(self.workers),
            release=release,
            clock=self.clock,
            activities=self.activities,
            host_memory=self.host_memory,
            neighbours=self.neighbours,
            epoch=lambda: self.leader.epoch,
            adapters=AdapterBook(self.workers),
            contest=self.scaler.contest,
        )
        writer = Writer(self.kube, self.cache, self.leader)
        executor = Executor(
            writer,
            self.workers,
            authority=self.leader,
            defaults=WorkerDefaults("IfNotPresent", self.operator_keys[0], "bb"),
            places=Places(self.cache),
            seals=Seals(self.seeds),
        )
        self.adapters = AdapterReconciler(writer, self.cache, clock=self.clock, reporter="me")
        self.told = Told()
        self.reconciler = Reconciler(
            writer,
            observer,
            executor,
            release=release,
            leader=self.leader,
            metrics=self.metrics,
            url="gateway:50051",
            listeners=(self.scaler, self.host_memory, self.neighbours, self.told),
            monotonic=lambda: self.seconds,
        )

    def apply(self, **spec: Any) -> None:
        """Create the deployment, or change its spec."""
        body = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, **spec}
        if self.kube.peek(INFERENCE_DEPLOYMENTS, *self.key):
            self.kube.edit(INFERENCE_DEPLOYMENTS, *self.key, lambda obj: obj["spec"].update(spec))
        else:
            metadata = {"namespace": self.key.namespace, "name": self.key.name}
            self.kube.put(INFERENCE_DEPLOYMENTS, {"metadata": metadata, "spec": body})

    def offer(self, name: str, uri: str, /, *, base: str = "tiny", **spec: Any) -> None:
        """Create an InferenceAdapter, a second after the last, or change its spec."""
        body = {"base": base, "uri": uri, **spec}
        if self.kube.peek(INFERENCE_ADAPTERS, self.key.namespace, name):
            self.kube.edit(INFERENCE_ADAPTERS, self.key.namespace, name, lambda obj: obj["spec"].update(body))
        else:
            self.clock.step(1)
            metadata = {"namespace": self.key.namespace, "name": name}
            self.kube.put(INFERENCE_ADAPTERS, {"metadata": metadata, "spec": body})

    def offered(self, name: str) -> dict[str, Any]:
        """Return the status of an InferenceAdapter."""
        obj = self.kube.peek(INFERENCE_ADAPTERS, self.key.namespace, name)
        return (obj or {}).get("status", {})

    async def reconcile(self) -> float | None:
        """Make one pass once the cache knows everything; a failed one is remembered and comes again."""
        self.pump.pump()
        return await self.reconcile_blindly()

    async def reconcile_blindly(self) -> float | None:
        """Make one pass over what the cache knew before, a second or more after the last one."""
        self.seconds += self.pause_s
        try:
            await self.adapters.reconcile(AdaptersKey(*self.key))
            return await self.reconciler.reconcile(self.key)
        except (PassFailed, KubeError) as error:
            self.errors.append(error)
            return 0.5

    async def settle(self, *, passes: int = 40) -> None:
        """Act in turn until neither the node nor the operator changes anything more."""
        for _ in range(passes):
            before = (self.kube.version, len(self.errors), len(self.marked))
            self.node.tick()
            after_s = await self.reconcile()
            if (self.kube.version, len(self.errors), len(self.marked)) == before and after_s != 0.0:
                return
        raise AssertionError(f"not settled after {passes} passes: {self.status}")

    async def until_profiled(self) -> None:
        """Start the pods and let every worker load."""
        await self.settle()
        self.finish_loading()

    def finish_loading(self) -> None:
        """Have every worker that loads be done with it."""
        for worker in self.workers.workers.values():
            if worker.state is WorkerState.LOADING:
                worker.finish_loading()

    async def serving(self, **spec: Any) -> None:
        """Apply and come to serve."""
        self.apply(**spec)
        await self.until_profiled()
        await self.settle()

    @property
    def status(self) -> dict[str, Any]:
        obj = self.kube.peek(INFERENCE_DEPLOYMENTS, *self.key)
        return (obj or {}).get("status", {})

    def condition(self, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition."""
        found = next(item for item in self.status["conditions"] if item["type"] == type_)
        return found["status"], found["reason"], found["message"]

    @property
    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.kube.everything(PODS)]

    def gate(self, index: int = 0) -> dict[str, Any] | None:
        """Return the readiness gate of the pod at a place in the list, None if it was never written."""
        conditions = self.kube.everything(PODS)[index]["status"]["conditions"]
        return next((item for item in conditions if item["type"] == READINESS_GATE), None)

    def worker(self, index: int = 0) -> FakeWorker:
        """Return the worker of the pod at a place in the list."""
        return self.node.worker_of(self.pods[index])

    @property
    def events(self) -> list[str]:
        """Return what was told, oldest first."""
        events = self.kube.everything(EVENTS)
        ordered = sorted(events, key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [f"{event['reason']}: {event['message']}" for event in ordered]


@pytest.fixture
def rig() -> Rig:
    return Rig()
