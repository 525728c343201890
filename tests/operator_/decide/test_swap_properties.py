"""Whatever happens during swaps, in any order, it ends with the wanted revision."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState
from tests.operator_.kit import SWAP, come_to_rest, passes, revisions, unheard

happenings = st.one_of(
    st.tuples(st.just("engine"), st.integers(1, 3)),
    st.tuples(st.just("memory"), st.integers(1, 2)),
    st.tuples(st.just("strategy"), st.sampled_from(["Surge", "SleepSwap"])),
    st.tuples(st.just("scale"), st.integers(1, 3)),
    st.tuples(st.just("order"), st.sampled_from(["Active", "Asleep"])),
    st.tuples(st.just("crash"), st.integers(0, 2)),
    st.tuples(st.just("busy"), st.integers(0, 2)),
    st.tuples(st.just("break"), st.integers(0, 2)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("silence"), st.just(0)),
    st.tuples(st.just("probe"), st.integers(0, 2)),
    st.tuples(st.just("pass"), st.integers(1, 6)),
)


def happen(rig, kind, value):
    """Let one thing happen."""
    if kind == "engine":
        rig.apply(engine={"device": "cpu", "maxNumSeqs": value})
    elif kind == "memory":
        rig.apply(resources={"limits": {"memory": f"{value}Gi"}})
    elif kind == "strategy":
        rig.apply(rollout={"strategy": value})
    elif kind == "scale":
        rig.apply(replicas=value)
    elif kind == "order":
        rig.apply(lifecycle={"desiredState": value})
    elif kind == "restart":
        rig.restart_operator()
    else:
        hit(rig, kind, value)


def hit(rig, kind, value):
    """Let one thing happen to one pod."""
    running = [pod for pod in rig.kube.everything(PODS) if pod.get("status", {}).get("podIP")]
    if not running:
        return
    name = running[value % len(running)]["metadata"]["name"]
    worker = rig.node.worker_of(name)
    if kind == "crash":
        rig.node.crash(name, exit_code=1)
        worker.running_requests = 0
    elif kind == "break":
        worker.swap_failure = "no"
    elif kind == "probe":
        rig.node.miss_probe(name)
    elif worker.state is WorkerState.READY:
        worker.running_requests = 1


@given(st.lists(happenings, max_size=14))
@example([("engine", 2), ("break", 0), ("pass", 2)])  # what was refused is not what is wanted next
@settings(
    max_examples=15,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_history_ends_with_the_wanted_revision(rig, history):
    asyncio.run(run_history(type(rig)(), history))


async def run_history(rig, history):
    await rig.serving(replicas=2, rollout=SWAP)
    for kind, value in history:
        if kind == "pass":
            await passes(rig, value)
        elif kind == "silence":
            await unheard(rig)
        else:
            happen(rig, kind, value)
    for worker in rig.workers.workers.values():
        worker.running_requests, worker.swap_failure = 0, ""
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 77})
    await come_to_rest(rig, lambda: passes(rig, 1), passes=80)
    assert rig.condition("Progressing")[:2] == ("True", "Complete"), (history, rig.status)
    assert revisions(rig) == {rig.status["rollout"]["revision"]}
    assert {worker.settings_digest for worker in rig.workers.workers.values()} == revisions(rig)
    assert rig.status["phase"] in {"Active", "Asleep"}
    version = rig.kube.version
    assert await rig.reconcile() is None
    assert rig.kube.version == version
