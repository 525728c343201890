"""Two deployments on one GPU that a device plugin gave to both: who is idle leaves for who is called."""

from __future__ import annotations

from dormouse_operator.model import Activity, Engine, Key, KvCache, RecordedStatus, WorkerState
from dormouse_operator.model.recorded import Rank
from dormouse_operator.testing.nouns import a_deployment, a_pod, a_situation, a_worker
from tests.operator_.ladders import LADDER, tell, until_due, wake


def neighbour(*, awake, held=0):
    """Return what the operator sees of another deployment with the same GPU."""
    rank = Rank(
        rank=0, pod=a_pod().name, num_gpu_blocks=10, num_cpu_blocks=0, allocated_gpu_blocks=10, gpu_uuid="GPU-1"
    )
    status = RecordedStatus(kv_cache=KvCache(16, 10, 0, "", (rank,)))
    deployment = a_deployment(key=Key("team", "beside"), engine=Engine(), recorded=status)
    worker = a_worker(WorkerState.READY if awake else WorkerState.ASLEEP)
    counts = {"awake_workers": 1, "running": 0, "waiting": 0, "mean_kv_cache_usage": 0.0}
    load = Activity(in_flight=held, held=held, quiet_s=0.0, **counts)
    return a_situation(worker, deployment=deployment, pods=(a_pod(node="node"),), activity=load)


async def serving(rig, **spec):
    """Serve on a GPU, for longer than a deployment stays awake at the least."""
    rig.apply(lifecycle=LADDER, **spec)
    await rig.settle()
    for worker in rig.workers.workers.values():
        worker.gpu_uuid = "GPU-1"
    await rig.until_profiled()
    await rig.settle()
    tell(rig)
    rig.clock.step(90)
    tell(rig, last_request_s=rig.clock().timestamp() - 80)
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_an_idle_one_sleeps_for_a_neighbour_that_is_called_and_waits_for_it_when_it_is_called_itself(rig):
    await serving(rig)
    rig.neighbours.saw(neighbour(awake=False, held=1))
    assert rig.key in rig.marked
    await rig.settle()
    while rig.status["phase"] != "Asleep":
        await until_due(rig)
    lifecycle = rig.status["lifecycle"]
    assert (lifecycle["rung"], lifecycle["reason"]) == ("Level1", "neighbour")
    rig.neighbours.saw(neighbour(awake=True, held=1))
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    words = "GPU GPU-1 on node node is shared with team/beside; called, it waits until team/beside sleeps"
    assert rig.condition("Ready") == ("False", "WaitsForNeighbour", words)
    assert rig.worker().state is WorkerState.ASLEEP
    rig.neighbours.saw(neighbour(awake=False))
    await rig.settle()
    assert rig.worker().state is WorkerState.READY
    assert rig.status["phase"] == "Active"
    assert "who is called has it" in rig.condition("Asleep")[2]


async def test_a_busy_one_stays(rig):
    await serving(rig)
    tell(rig, in_flight=1)
    rig.neighbours.saw(neighbour(awake=False, held=1))
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_one_that_was_just_woken_serves_for_its_time_before_it_leaves(rig):
    await serving(rig)
    rig.clock.step(-60)
    tell(rig, last_request_s=rig.clock().timestamp() - 20)
    rig.neighbours.saw(neighbour(awake=False, held=1))
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_who_cannot_take_turns_is_degraded_with_the_field(rig):
    await serving(rig, replicas=2)
    rig.neighbours.saw(neighbour(awake=True))
    await rig.settle()
    status, reason, words = rig.condition("Degraded")
    assert (status, reason) == ("True", "NoTurns")
    assert words.endswith("they do not fit beside each other; no turns are taken, because spec.replicas is 2, not 1")
