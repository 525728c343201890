"""Whatever happens to groups of pods: none lives on without all its pods, and at rest nothing is written."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dormouse_api.names import LABEL_COMPONENT, LABEL_GROUP_SIZE, LABEL_LEADER_UID, READINESS_GATE
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Forbidden, Unavailable
from dormouse_operator.model import WorkerState
from tests.operator_.kit import come_to_rest

happenings = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.just("size"), st.integers(1, 3)),
    st.tuples(st.just("order"), st.sampled_from(["Auto", "Active", "Asleep", "Zero"])),
    st.tuples(st.just("spec"), st.integers(1, 3)),
    st.tuples(st.just("crash"), st.integers(0, 8)),
    st.tuples(st.just("delete"), st.integers(0, 8)),
    st.tuples(st.just("lose"), st.integers(0, 8)),
    st.tuples(st.just("evict"), st.integers(0, 8)),
    st.tuples(st.just("busy"), st.integers(0, 2)),
    st.tuples(st.just("outage"), st.integers(1, 3)),
    st.tuples(st.just("quota"), st.integers(1, 3)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("seconds"), st.integers(1, 60)),
    st.tuples(st.just("pass"), st.integers(1, 5)),
)
SPECS = {
    "scale": lambda count: {"replicas": count},
    "size": lambda size: {"parallelism": {"pipeline": size}},
    "order": lambda state: {"lifecycle": {"desiredState": state, "drainTimeoutSeconds": 30}},
    "spec": lambda count: {"engine": {"device": "cpu", "maxNumSeqs": count}},
}


async def happen(rig, kind, value):
    """Let one thing happen to the deployment."""
    if kind in SPECS:
        rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, lambda obj: obj["spec"].update(SPECS[kind](value)))
    elif kind == "outage":
        rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Unavailable("down"), times=value)
    elif kind == "quota":
        rig.kube.fail("create", PODS, Forbidden("exceeded quota"), times=value)
    elif kind == "restart":
        rig.restart_operator()
    elif kind == "seconds":
        rig.clock.step(value)
    elif kind == "pass":
        for _ in range(value):
            await one_pass(rig)
    elif rig.pods:
        await hit(rig, kind, rig.pods[value % len(rig.pods)])


async def hit(rig, kind, name):
    """Let one thing happen to one pod."""
    pod = rig.kube.peek(PODS, "team", name)
    worker = rig.workers.workers.get(pod.get("status", {}).get("podIP", ""))
    if kind == "delete":
        await rig.kube.delete(PODS, "team", name)
    elif kind == "lose":
        await rig.kube.delete(PODS, "team", name, grace_period_s=0)
        rig.workers.workers.pop(pod.get("status", {}).get("podIP", ""), None)
    elif not pod.get("status", {}).get("podIP"):
        return
    elif kind == "evict":
        rig.kube.edit(PODS, "team", name, lambda obj: obj["status"].update(phase="Failed", message="full"))
    elif kind == "crash":
        rig.node.crash(name, exit_code=1)
    elif worker and worker.state is WorkerState.READY:
        worker.running_requests = 1


async def one_pass(rig):
    """Let the node, the workers and the operator act once, and check what must always hold."""
    rig.node.tick()
    rig.finish_loading()
    after_s = await rig.reconcile()
    check_gates(rig)
    return after_s


def check_gates(rig):
    """Nobody is in the Service without a cache."""
    for pod in rig.kube.everything(PODS):
        conditions = {item["type"]: item for item in pod.get("status", {}).get("conditions", [])}
        worker = rig.workers.workers.get(pod.get("status", {}).get("podIP", ""))
        if worker and conditions.get(READINESS_GATE, {}).get("status") == "True":
            assert worker.state is not WorkerState.ASLEEP, "the gate closes before the worker sleeps"
            assert worker.allocated > 0 or worker.state is not WorkerState.READY


def check_groups(rig, replicas):
    """No pod lives on without the others of its group, and none belongs to a leader that is not there."""
    pods = [pod["metadata"] for pod in rig.kube.everything(PODS)]
    leaders = {pod["uid"]: pod for pod in pods if pod["labels"][LABEL_COMPONENT] == "worker"}
    assert len(leaders) == replicas
    made_for = [pod["labels"][LABEL_LEADER_UID] for pod in pods if pod["uid"] not in leaders]
    for uid, leader in leaders.items():
        assert made_for.count(uid) == int(leader["labels"].get(LABEL_GROUP_SIZE, "1")) - 1
    assert set(made_for) <= leaders.keys()


@given(st.lists(happenings, max_size=14))
@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_history_of_groups_ends_with_whole_groups_and_at_rest(rig, history):
    asyncio.run(run_history(type(rig)(), history))


async def run_history(rig, history):
    rig.apply(parallelism={"pipeline": 2}, replicas=2)
    for kind, value in history:
        await happen(rig, kind, value)
    for worker in rig.workers.workers.values():
        worker.running_requests = 0
    await come_to_rest(rig, lambda: one_pass(rig), passes=100)
    spec = rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["spec"]
    order = spec.get("lifecycle", {}).get("desiredState")
    replicas = 0 if order == "Zero" else spec["replicas"]
    check_groups(rig, replicas)
    wanted = "Zero" if order == "Zero" else "Off" if not replicas else "Asleep" if order == "Asleep" else "Active"
    assert rig.status["phase"] == wanted, (history, rig.status)
