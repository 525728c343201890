"""Whatever happens to a whole operator with a pool: no two have memory of a slot, and everyone who calls is served."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState
from dormouse_operator.model.units import GIB
from tests.operator_.pools.rig import POOL, PoolRig

pytestmark = pytest.mark.timeout(300)  # some thousand passes

NAMES = ("a", "b", "c")
BOUND = 400  # passes, a second each: the longest back-off, and every deadline of a victim on the way
names = st.sampled_from(NAMES)


class Histories(RuleBasedStateMachine):
    """Requests, faults of workers, and operators that die after any pass."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def do(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    @initialize(slots=st.integers(1, 2))
    def begin(self, slots):
        self.rig = PoolRig()
        self.rig.pool(slots)
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
                self.rig.held[name] += worker.running_requests
                worker.running_requests = 0
                worker.fail("Internal", "a test wants it")

    @rule(loads=st.booleans())
    def load_slowly(self, loads):
        self.rig.loads_at_once = loads

    @rule(slots=st.integers(1, 2))
    def change_slots(self, slots):
        self.rig.pool(slots)

    @rule()
    def delete_a_pod(self):
        pods = [pod for name in NAMES for pod in self.rig.pods_of(name) if self.rig.has_worker(pod)]
        if pods:
            found = self.rig.kube.peek(PODS, POOL.namespace, pods[0])
            self.rig.held[found["metadata"]["labels"][LABEL_DEPLOYMENT]] += self.rig.node.worker_of(
                pods[0]
            ).running_requests
            self.do(self.rig.kube.delete(PODS, POOL.namespace, pods[0]))

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
        for name in NAMES:
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
