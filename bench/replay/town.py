"""A replay: the whole operator over a Kubernetes in memory, a pool, its members' workers, a gateway and the calls.

Real are the operator's parts from watches and work list to orders. In memory are the API server, whose answers take no
time, the kubelet, which tells at once, and the workers. What the API server and the orders take is in the wakes of the
trace (`pools_trace.ORDERS_S`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from bench.fleet.cluster import GATEWAY_SEED, OPERATOR_SEED
from bench.pools_picture import Stretch
from bench.pools_trace import Trace
from bench.pools_world import START, Outcome, key_of
from bench.replay import virtual_loop
from bench.replay.gateway import Gateway
from bench.replay.leads import Leads
from bench.replay.workers import PacedWorkers
from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_kube.api import GPU_POOLS, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Gone
from dormouse_kube.testing import FakeKube
from dormouse_operator.app import App
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import WorkerState
from dormouse_operator.parse import slot_of
from dormouse_operator.seeds import Seeds
from dormouse_operator.settings import Settings, parse_settings
from dormouse_operator.testing.feed import FakeWatch
from dormouse_operator.testing.kube import FakeNode
from dormouse_operator.testing.pooled import PooledWorker

NAMESPACE, POOL = key_of(0).namespace, "gpus"
LOOK_S = 1.0  # while the town comes to rest
FORGET_S = 60.0  # how often what is over is forgotten
NUM_BLOCKS = 2000
GATE = {"type": "Ready", "status": "True"}


@dataclass(slots=True)
class Seat:
    """One replica: its worker, where it is, and whose it is."""

    pod: str
    slot: str
    number: int  # of the model
    worker: PooledWorker
    is_ready: bool = False  # as the kubelet says


@dataclass(slots=True)
class Town:
    """Everything around the operator, and what was seen of it."""

    trace: Trace
    kube: FakeKube
    node: FakeNode
    workers: PacedWorkers
    outcome: Outcome
    gateway: Gateway = field(init=False)
    seats: dict[str, Seat] = field(default_factory=dict)  # by name of the pod
    _by_worker: dict[int, Seat] = field(default_factory=dict)  # by identity
    _still_since_s: dict[str, float] = field(default_factory=dict)  # by slot
    _served_since_s: dict[str, float] = field(default_factory=dict)  # by pod

    def __repr__(self) -> str:
        return f"Town({len(self.seats)} replicas, {self.gateway!r})"

    # what people want

    def apply(self) -> None:
        """Create the pool and its members."""
        most = sum(len(model.slots) for model in self.trace.models)
        spec = {
            "slots": self.trace.num_slots,
            "device": {"claim": {"deviceClassName": "gpu.example.com"}},
            "maxMembersPerSlot": most,
            "sleeperReserve": "256Mi",
        }
        self.kube.put(GPU_POOLS, {"metadata": {"namespace": NAMESPACE, "name": POOL}, "spec": spec})
        for number, model in enumerate(self.trace.models):
            self.kube.put(INFERENCE_DEPLOYMENTS, _member(number, len(model.slots)))

    async def settle(self) -> None:
        """Wait until every replica has a pod, and have all of them asleep with their weights in host memory."""
        wanted = sum(len(model.slots) for model in self.trace.models)
        while len(self.workers.workers) < wanted:
            await asyncio.sleep(LOOK_S)
            self.node.tick()
        for pod in self.kube.everything(PODS):
            self._seat(pod)

    def _seat(self, pod: dict[str, Any]) -> None:
        worker = self.workers.workers[pod["status"]["podIP"]]
        assert isinstance(worker, PooledWorker), "its pod is on a slot"
        worker.state, worker.sleep_level, worker.kept, worker.has_report = WorkerState.ASLEEP, 1, NUM_BLOCKS, True
        name = pod["metadata"]["name"]
        number = int(pod["metadata"]["labels"][LABEL_DEPLOYMENT][1:])
        seat = Seat(name, slot_of(pod), number, worker)
        self.seats[name] = self._by_worker[id(worker)] = seat
        self.workers.tell(worker)

    def placed(self) -> Trace:
        """Return the trace with each model on the slots that the operator gave it."""
        slots: dict[int, set[int]] = {}
        for seat in self.seats.values():
            slots.setdefault(seat.number, set()).add(int(seat.slot.rpartition("-")[2]))
        models = (replace(model, slots=tuple(sorted(slots[at]))) for at, model in enumerate(self.trace.models))
        return replace(self.trace, models=tuple(models))

    # the kubelet

    async def live(self) -> None:
        """Tell at once of each gate that changed whether its pod is ready."""
        while True:
            for seat in self.seats.values():
                self._probe(seat)
            with suppress(Gone):  # what is over was forgotten in between
                await self._follow(str(self.kube.version))

    async def _follow(self, version: str) -> None:
        async for event in self.kube.watch(PODS, NAMESPACE, resource_version=version):
            seat = self.seats.get(event.object["metadata"].get("name", ""))
            if seat and event.type == "MODIFIED":
                self._probe(seat)

    def _probe(self, seat: Seat) -> None:
        self.node.probe(NAMESPACE, seat.pod)
        self._see(seat)

    def _see(self, seat: Seat) -> None:
        pod = self.kube.peek(PODS, NAMESPACE, seat.pod)
        seat.is_ready = pod is not None and GATE in pod["status"]["conditions"]
        self.gateway.flow(seat.number)

    def serving(self, number: int) -> PooledWorker | None:
        """Return a worker that takes calls of a model."""
        awake = (seat for seat in self.seats.values() if seat.number == number and seat.is_ready)
        return next((seat.worker for seat in awake if seat.worker.state is WorkerState.READY), None)

    async def forget(self) -> None:
        """Forget now and then what the cluster was asked and was like."""
        while True:
            await asyncio.sleep(FORGET_S)
            self.kube.calls.clear()
            self.kube.compact()

    # what workers do

    def wake_s(self, worker: PooledWorker) -> float:
        """See `Pace`."""
        return self.trace.models[self._by_worker[id(worker)].number].wake_s

    def sleep_s(self, worker: PooledWorker) -> float:
        """See `Pace`."""
        return self.trace.models[self._by_worker[id(worker)].number].sleep_s

    def parked(self, worker: PooledWorker) -> None:
        """See `Pace`."""
        self.gateway.park(worker)

    def left(self, worker: PooledWorker) -> None:
        """See `Pace`."""
        seat, now_s = self._by_worker[id(worker)], self._now_s
        self._still_since_s.setdefault(seat.slot, now_s)
        self.outcome.switches += 1
        self._note(seat)

    def changed(self, worker: PooledWorker) -> None:
        """See `Pace`."""
        seat = self._by_worker.get(id(worker))
        if seat is None:
            return
        if worker.state is WorkerState.READY and seat.pod not in self._served_since_s:
            self._served_since_s[seat.pod] = self._now_s
            self.outcome.switching_s += self._now_s - self._still_since_s.pop(seat.slot, self._now_s)
        self._see(seat)

    def end(self) -> Outcome:
        """Return what was seen, from the first call to the last second of the trace."""
        for seat in self.seats.values():
            self._note(seat)
        waits = self.gateway.waits
        self.outcome.waits_s, self.outcome.lost, self.outcome.parked = waits.waits_s, waits.lost, waits.parked
        return self.outcome

    def _note(self, seat: Seat) -> None:
        """Remember that a slot was a replica's until now."""
        since_s = self._served_since_s.pop(seat.pod, None)
        if since_s is not None:
            self.outcome.stretches.append(Stretch(seat.slot, seat.number, since_s, self._now_s))

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of the calls, and the trace as the operator had placed it."""

    outcome: Outcome
    trace: Trace
    most_awake: int  # on one slot at a time, as the devices saw it


def replay(trace: Trace) -> Replayed:
    """Replay a trace in virtual time."""
    return virtual_loop.run(_replay(trace))


async def _replay(trace: Trace) -> Replayed:
    town = _build(trace)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_operator(town).run(stop))
        town.apply()
        await town.settle()
        helpers = [tasks.create_task(town.live()), tasks.create_task(town.forget())]
        while not town.gateway.is_heard:  # noqa: ASYNC110  # who listens tells nobody
            await asyncio.sleep(LOOK_S)
        await _call(town)
        outcome = town.end()
        stop.set()
        for helper in helpers:
            helper.cancel()
    return Replayed(outcome, town.placed(), max(device.most_seen for device in town.node.devices.values()))


def _build(trace: Trace) -> Town:
    kube = FakeKube(clock=_now)
    town = Town.__new__(Town)
    workers = PacedWorkers(pace=town)
    node = FakeNode(kube, workers, _now)
    outcome = Outcome(trace.seconds, trace.num_slots, len(trace.calls))
    Town.__init__(town, trace, kube, node, workers, outcome)
    town.gateway = Gateway(len(trace.models), town.serving, workers.note_end)
    return town


def _operator(town: Town) -> App:
    return App(
        town.kube,
        town.workers,
        Leads(),
        settings=_settings(),
        seeds=Seeds((OPERATOR_SEED,), (GATEWAY_SEED,)),
        metrics=Metrics(),
        watch=FakeWatch(town.kube),
        gateways=town.gateway.told,
        now=_now,
    )


async def _call(town: Town) -> None:
    """Have the calls come in, and wait until the last has ended."""
    begin_s = asyncio.get_running_loop().time()
    shifted = [replace(call, at_s=call.at_s + begin_s) for call in town.trace.calls]
    town.gateway.awaited = len(shifted)
    for call in shifted:
        await asyncio.sleep(max(0.0, call.at_s - asyncio.get_running_loop().time()))
        town.gateway.arrive(call)
    await asyncio.sleep(max(0.0, begin_s + town.trace.seconds - asyncio.get_running_loop().time()))
    await town.gateway.all_ended.wait()


def _member(number: int, replicas: int) -> dict[str, Any]:
    key = key_of(number)
    spec = {
        "model": {"uri": f"pvc://models/{key.name}"},
        "engine": {"device": "cuda"},
        "gpu": {"pool": {"name": POOL}},
        "replicas": replicas,
        "lifecycle": {"level1AfterSeconds": None},
    }
    return {"metadata": {"namespace": key.namespace, "name": key.name}, "spec": spec}


def _settings() -> Settings:
    known = parse_settings({"DORMOUSE_NAMESPACE": "system", "DORMOUSE_RELEASE": "r", "DORMOUSE_TOKENS_DIR": "/none"})
    return replace(known, resync_seconds=10 * 24 * 3600)


def _now() -> datetime:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, virtual_loop.VirtualLoop), "nothing here runs in real time"
    return loop.at(START)
