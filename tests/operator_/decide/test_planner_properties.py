"""Whatever happens to a deployment, it ends where it was ordered to be, and no worker serves what it may not."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dormouse_api.names import READINESS_GATE
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Unavailable
from dormouse_operator.model import WorkerState
from tests.operator_.kit import come_to_rest

happenings = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.just("order"), st.sampled_from(["Auto", "Active", "Asleep", "Zero"])),
    st.tuples(st.just("level"), st.integers(1, 2)),
    st.tuples(st.just("crash"), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.integers(0, 2)),
    st.tuples(st.just("busy"), st.integers(0, 2)),
    st.tuples(st.just("outage"), st.integers(1, 3)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("seconds"), st.integers(1, 20)),
    st.tuples(st.just("pass"), st.integers(1, 5)),
    st.tuples(st.just("spec"), st.integers(1, 3)),
)


SPECS = {
    "scale": lambda count: {"replicas": count},
    "order": lambda state: {"lifecycle": {"desiredState": state, "drainTimeoutSeconds": 30}},
    "level": lambda level: {"lifecycle": {"desiredState": "Asleep", "sleepLevel": level}},
    "spec": lambda count: {"engine": {"device": "cpu", "maxNumSeqs": count}},
}


async def happen(rig, kind, value):
    """Let one thing happen to the deployment."""
    pods = rig.pods
    if kind in SPECS:
        rig.apply(**SPECS[kind](value))
    elif kind == "outage":
        rig.kube.fail("list", PODS, Unavailable("down"), times=value)
        rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Unavailable("down"), times=value)
    elif kind == "restart":
        rig.restart_operator()
    elif kind == "seconds":
        rig.clock.step(value)
    elif kind == "pass":
        for _ in range(value):
            await one_pass(rig)
    elif pods and (name := pods[value % len(pods)]):
        await hit(rig, kind, name)


async def hit(rig, kind, name):
    """Let one thing happen to one pod."""
    pod = rig.kube.peek(PODS, rig.key.namespace, name)
    if not pod.get("status", {}).get("podIP"):
        return
    if kind == "crash":
        rig.node.crash(name, exit_code=1)
    elif kind == "delete":
        await rig.kube.delete(PODS, rig.key.namespace, name)
    elif rig.node.worker_of(name).state is WorkerState.READY:
        rig.node.worker_of(name).running_requests = 1


async def one_pass(rig):
    """Let the node, the workers and the operator act once, and check what must always hold."""
    rig.node.tick()
    rig.finish_loading()
    after_s = await rig.reconcile()
    check(rig)
    return after_s


def check(rig):
    """Nobody is in the Service without a cache, and nobody holds more than it reported."""
    for pod in rig.kube.everything(PODS):
        conditions = {item["type"]: item for item in pod.get("status", {}).get("conditions", [])}
        worker = rig.workers.workers.get(pod.get("status", {}).get("podIP", ""))
        if worker and conditions.get(READINESS_GATE, {}).get("status") == "True":
            assert worker.state is not WorkerState.ASLEEP, "the gate closes before the worker sleeps"
            assert worker.allocated > 0 or worker.state is not WorkerState.READY
    for worker in rig.workers.workers.values():
        assert worker.allocated <= worker.num_gpu_blocks


@given(st.lists(happenings, max_size=12), st.lists(st.integers(500, 3000), min_size=3, max_size=3))
@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_history_ends_as_ordered(rig, history, blocks):
    asyncio.run(run_history(type(rig)(), history, blocks))


async def run_history(rig, history, blocks):
    rig.node.blocks = {str(index): count for index, count in enumerate(blocks)}
    rig.apply()
    for kind, value in history:
        await happen(rig, kind, value)
    for worker in rig.workers.workers.values():
        worker.running_requests = 0
    await come_to_rest(rig, lambda: one_pass(rig), passes=60)
    spec = rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["spec"]
    order = spec.get("lifecycle", {}).get("desiredState")
    replicas = 0 if order == "Zero" else spec.get("replicas", 1)
    workers = list(rig.workers.workers.values())
    assert len(workers) == replicas, (history, rig.status)
    if not replicas:
        assert rig.status["phase"] == ("Zero" if order == "Zero" else "Off")
    elif order == "Asleep":
        assert rig.status["phase"] == "Asleep", (history, rig.status)
        assert {worker.state for worker in workers} == {WorkerState.ASLEEP}
        assert min(worker.sleep_level for worker in workers) >= spec["lifecycle"].get("sleepLevel", 1)
    else:
        assert rig.status["phase"] == "Active", (history, rig.status)
        assert {worker.allocated for worker in workers} == {rig.status["kvCache"]["numGpuBlocks"]}
    await settled_writes_nothing(rig)


async def settled_writes_nothing(rig):
    """At rest a pass changes nothing."""
    version = rig.kube.version
    assert await rig.reconcile() is None
    assert rig.kube.version == version
