"""Whatever happens to a whole operator with a pool: no two have memory of a slot, and everyone who calls is served."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dormouse_kube.api import PODS, RESOURCE_CLAIMS
from dormouse_operator.model import WorkerState
from dormouse_operator.model.units import GIB
from tests.operator_.pools.rig import OTHER, POOL, PoolRig

pytestmark = pytest.mark.timeout(300)  # some thousand passes

NAMES = ("a", "b", "c")
SECOND_GATEWAY = "b:1"
BOUND = 400  # passes, a second each: the longest back-off, and every deadline of a victim on the way
names = st.sampled_from(NAMES)


class Histories(RuleBasedStateMachine):
    """Requests, changes by people, faults of workers, nodes, claims and gateways, operators that die after any pass."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.away = {}  # pods on nodes that are silent, with what runs there

    def do(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    @initialize(slots=st.integers(1, 2))
    def begin(self, slots):
        self.rig, self.slots = PoolRig(), slots
        self.rig.pool(slots)
        self.rig.other_pool()
        for name in NAMES:
            self.rig.member(name)
        self.do(self.rig.steps(4))

    def workers(self, name):
        return self.rig.workers_of(name)

    @rule(name=names, count=st.integers(1, 3))
    def call(self, name, count):
        self.rig.call(name, count)

    @rule(name=names)
    def finish(self, name):
        self.rig.finish(name)

    @rule(number=st.integers(1, 6), seconds=st.sampled_from([0.0, 0.5, 5.0, 20.0]))
    def go_on(self, number, seconds):
        self.do(self.rig.steps(number, seconds))

    @rule()
    def lose_the_operator(self):
        self.do(self.rig.operator.pools.stop())
        self.rig.restart_operator()

    @rule(name=names, what=st.sampled_from(["sleep", "wake"]))
    def refuse(self, name, what):
        for worker in self.workers(name):
            worker.refuses = {what}

    @rule(name=names, what=st.sampled_from(["sleep 1", "sleep 2", "wake"]))
    def hang(self, name, what):
        for worker in self.workers(name):
            worker.hangs = {what}

    @rule(name=names, missing=st.sampled_from([0, GIB]))
    def be_short_of_memory(self, name, missing):
        for worker in self.workers(name):
            worker.missing_bytes = missing

    @rule(name=names)
    def crash(self, name):
        if self.workers(name):
            self.rig.crash(name)

    @rule(name=names)
    def fail(self, name):
        for worker in self.workers(name):
            if worker.state in {WorkerState.READY, WorkerState.LOADING, WorkerState.PROFILED}:
                self.lose_requests_of(name, worker)
                worker.fail("Internal", "a test wants it")

    @rule(loads=st.booleans())
    def load_slowly(self, loads):
        self.rig.loads_at_once = loads

    @rule(slots=st.integers(1, 2))
    def change_slots(self, slots):
        self.slots = slots
        if self.rig.slots():
            self.rig.pool(slots)

    @rule()
    def delete_the_pool(self):
        self.rig.delete_pool()

    @rule()
    def make_the_pool_anew(self):
        self.rig.pool(self.slots)

    @rule(name=names, pool=st.sampled_from([POOL.name, OTHER]))
    def move(self, name, pool):
        self.rig.member(name, gpu={"pool": {"name": pool}})

    @rule()
    def delete_a_pod(self):
        pods = [(name, pod) for name in NAMES for pod in self.rig.pods_of(name) if self.rig.has_worker(pod)]
        for name, pod in pods[:1]:
            self.lose_requests_of(name, self.rig.node.worker_of(pod))
            self.do(self.rig.kube.delete(PODS, POOL.namespace, pod))

    @rule(is_heard=st.booleans())
    def hear_a_second_gateway(self, is_heard):
        (self.rig.operator.activities.drop if is_heard else self.rig.operator.activities.expect)(SECOND_GATEWAY)

    @rule(number=st.integers(0, 1), change=st.sampled_from(["deallocated", "deleted"]))
    def take_a_claim_by_force(self, number, change):
        name = f"{POOL.name}-{number}"
        if not self.rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, name):
            return
        if change == "deleted":
            self.rig.kube.finish_deletion(RESOURCE_CLAIMS, POOL.namespace, name)
        else:
            self.rig.kube.edit(RESOURCE_CLAIMS, POOL.namespace, name, lambda claim: claim.update(status={}))

    @rule(number=st.integers(0, 1))
    def taint_a_device(self, number):
        for name in NAMES:
            for pod in self.rig.pods_of(name):
                if self.rig.slot_of(pod) == f"{POOL.name}-{number}" and self.rig.has_worker(pod):
                    self.lose_requests_of(name, self.rig.node.worker_of(pod))
                    self.rig.evict(pod)

    @rule(name=names)
    def lose_a_node(self, name):
        for pod in self.rig.pods_of(name)[:1]:
            if self.rig.has_worker(pod):
                worker = self.rig.node.worker_of(pod)
                self.lose_requests_of(name, worker)
                self.away[pod] = worker
                self.rig.node.lose(pod)

    @rule()
    def find_the_nodes_again(self):
        for pod, worker in self.away.items():  # they were cut off: nothing there has changed
            self.rig.node.find(pod, worker)
        self.away.clear()

    def lose_requests_of(self, name, worker):
        self.rig.held[name] += worker.running_requests
        worker.running_requests = 0

    @invariant()
    def nobody_overlaps(self):
        if hasattr(self, "rig"):
            self.rig.check()

    def teardown(self):
        """With all faults gone, everyone who calls is served, each until its requests end."""
        try:
            if hasattr(self, "rig"):
                self.do(self.serve_everyone())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.do(asyncio.sleep(0))
            self.loop.close()

    async def serve_everyone(self):
        self.rig.loads_at_once = True
        self.find_the_nodes_again()
        self.make_the_pool_anew()
        for name in NAMES:
            self.move(name, POOL.name)
            for worker in self.workers(name):
                worker.refuses, worker.hangs, worker.missing_bytes = set(), set(), 0
        await self.rig.operator.pools.stop()
        self.rig.restart_operator()
        unserved = set(NAMES)
        for name in NAMES:
            self.rig.call(name)
        for _ in range(BOUND):
            for name in NAMES:
                if self.rig.num_running(name):
                    unserved.discard(name)
                    self.rig.finish(name)
            if not unserved:
                return
            await self.rig.step(1.0)
        raise AssertionError(f"{unserved} unserved: {self.rig.slots()}, {self.rig.states()}, {self.rig.events[-8:]}")


Histories.TestCase.settings = settings(
    max_examples=8,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
)
TestHistories = Histories.TestCase
