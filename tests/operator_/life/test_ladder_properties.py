"""Whatever happens on the ladder: no request is ended for it, a call brings the deployment back, silence empties it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dormouse_api.names import READINESS_GATE
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Unavailable
from dormouse_operator.errors import WorkerRefused
from dormouse_operator.model import WorkerState
from tests.operator_.ladders import tell, wake

LADDER = {"level1AfterSeconds": 60, "level2AfterSeconds": 120, "zeroAfterSeconds": 240, "minActiveSeconds": 10}
happenings = st.one_of(
    st.tuples(st.just("silence"), st.integers(10, 300)),
    st.tuples(st.just("pass"), st.integers(1, 4)),
    st.tuples(st.just("request"), st.integers(0, 2)),
    st.tuples(st.just("answer"), st.just(0)),
    st.tuples(st.just("held"), st.integers(0, 100)),
    st.tuples(st.just("intent"), st.just(0)),
    st.tuples(st.just("lose"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.integers(0, 2)),
    st.tuples(st.just("scale"), st.integers(1, 3)),
    st.tuples(st.just("outage"), st.integers(1, 3)),
    st.tuples(st.just("spec"), st.integers(1, 3)),
    st.tuples(st.just("refusal"), st.integers(0, 2)),
    st.tuples(st.just("crowd"), st.just(0)),
)


class Night:
    """A deployment, a gateway that hears everything but requests past it, and what must always hold."""

    def __init__(self, rig):
        self.rig = rig
        self.is_steady = True
        self.begun = {}  # requests per worker that nobody may end

    async def passes(self, count):
        """Let the node, the workers and the operator act in turn."""
        for _ in range(count):
            self.rig.node.tick()
            self.rig.finish_loading()
            await self.rig.reconcile()
            self.check()

    def check(self):
        """Nobody who sleeps is in the Service, no request was ended, and the status counts who is there."""
        status = self.rig.status
        assert status.get("readyReplicas", 0) + status.get("sleepingReplicas", 0) <= status.get("replicas", 0)
        for pod in self.rig.kube.everything(PODS):
            worker = self.rig.workers.workers.get(pod.get("status", {}).get("podIP", ""))
            conditions = {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions", [])}
            if worker and conditions.get(READINESS_GATE) == "True":
                assert worker.state is not WorkerState.ASLEEP
        for address, (worker, count) in self.begun.items():
            assert self.rig.workers.workers.get(address) is worker, "its pod was taken away"
            assert "abort" not in worker.commands
            assert worker.running_requests == count

    async def until(self, reached, *, passes, step_s):
        """Let so many seconds go by between passes until it holds after four in a row, or all passes are over."""
        in_a_row = 0
        for _ in range(passes):
            self.rig.clock.step(step_s)
            await self.passes(1)
            in_a_row = in_a_row + 1 if reached() else 0
            if in_a_row == 4:
                return

    def serves(self):
        """Return whether it is active and ready, and everybody there is ready or asleep."""
        status = self.rig.status
        there = status.get("readyReplicas", 0) + status.get("sleepingReplicas", 0)
        return status["phase"] == "Active" and self.rig.condition("Ready")[0] == "True" and there == len(self.rig.pods)

    def serves_in_full(self):
        replicas = self.rig.kube.peek(INFERENCE_DEPLOYMENTS, *self.rig.key)["spec"]["replicas"]
        return (self.rig.status.get("readyReplicas"), len(self.rig.pods)) == (replicas, replicas)

    def is_zero(self):
        return (self.rig.status["phase"], self.rig.pods) == ("Zero", [])

    async def happen(self, kind, value):
        if kind in {"silence", "pass"}:
            self.rig.clock.step(value if kind == "silence" else 0)
            await self.passes(3 if kind == "silence" else value)
        elif kind in {"request", "crash", "delete"}:
            await self.hit(kind, value)
        else:
            getattr(self, kind)(value)

    def held(self, count):
        tell(self.rig, in_flight=count, held=count)

    def intent(self, _):
        wake(self.rig)

    def lose(self, _):
        self.rig.activities.expect("a:1")

    def restart(self, _):
        self.rig.restart_operator()

    def outage(self, times):
        self.rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Unavailable("down"), times=times)

    def scale(self, count):
        self.change(replicas=count)

    def spec(self, count):
        self.change(engine={"device": "cpu", "maxNumSeqs": count})

    def refusal(self, place):
        """Have one worker, if there is one, lack the memory to wake once."""
        workers = list(self.rig.workers.workers.values())
        if workers:
            workers[place % len(workers)].refuse_next.append(WorkerRefused("FAILED_PRECONDITION: no memory"))

    def crowd(self, _=None):
        """Have sleeping models take more host memory than they may, from now on."""
        self.rig.host_limit_bytes = 1
        for worker in self.rig.workers.workers.values():
            worker.host_copy_bytes = 2**30
        self.rig.restart_operator()

    def change(self, **spec):
        """Change the spec: from now on pods may go, and end what outlasts its drain."""
        self.rig.apply(**spec)
        self.is_steady = False
        self.begun.clear()

    def answer(self, _=None):
        for worker in self.rig.workers.workers.values():
            worker.running_requests = 0
        self.begun.clear()

    async def hit(self, kind, place):
        """Let something happen to one pod."""
        if not (pods := self.rig.pods):
            return
        name = pods[place % len(pods)]
        pod = self.rig.kube.peek(PODS, self.rig.key.namespace, name)
        address = pod.get("status", {}).get("podIP")
        worker = self.rig.workers.workers.get(address)
        if worker is None:
            return
        if kind == "crash":
            self.begun.pop(address, None)
            worker.running_requests = 0
            self.rig.node.crash(name, exit_code=1)
        elif kind == "delete":
            self.begun.pop(address, None)
            await self.rig.kube.delete(PODS, self.rig.key.namespace, name)
        elif worker.state is WorkerState.READY:
            worker.request_counter += 1
            worker.running_requests += 1
            if self.is_steady and "deletionTimestamp" not in pod["metadata"]:  # one that a user deleted is ending
                self.begun[address] = worker, worker.running_requests


@given(st.lists(happenings, max_size=14))
@example([("delete", 0), ("request", 0), ("pass", 1)])
@pytest.mark.timeout(300)  # some seconds on a machine of its own
@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_night_ends_with_an_answer_and_then_in_silence(rig, history):
    asyncio.run(run_night(Night(type(rig)()), history))


async def run_night(night, history):
    rig = night.rig
    await rig.serving(lifecycle=LADDER, replicas=3)
    tell(rig)
    for kind, value in history:
        await night.happen(kind, value)
    night.answer()
    night.begun.clear()
    tell(rig, in_flight=1, held=1)
    wake(rig)
    await night.until(night.serves, passes=30, step_s=1)
    assert night.serves(), (history, rig.status)
    assert rig.status["readyReplicas"] >= 1
    tell(rig, in_flight=1000)
    await night.until(night.serves_in_full, passes=45, step_s=1)
    assert night.serves_in_full(), (history, rig.status)
    tell(rig)
    await night.until(night.is_zero, passes=60, step_s=10)
    assert night.is_zero(), (history, rig.status)
    version = rig.kube.version
    assert await rig.reconcile() is None
    assert rig.kube.version == version
