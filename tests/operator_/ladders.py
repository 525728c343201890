"""Deployments on the ladder: what gateways tell of them, wakes, and the way down to a rung."""

from __future__ import annotations

from dormouse_api.names import ANNOTATION_WAKE
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_operator.model import Activity, WorkerState
from dormouse_operator.observe.gateways import Told
from dormouse_operator.testing.gateways import FakeGateways

LADDER = {"level1AfterSeconds": 600, "level2AfterSeconds": 1800, "zeroAfterSeconds": 7200, "drainTimeoutSeconds": 60}


def tell(rig, *, gateway="a:1", **facts):
    """Have a gateway tell what goes on at the deployment."""
    report = FakeGateways(lambda: rig.clock().timestamp()).report(**facts)
    rig.activities.take(gateway, Told({rig.key: report}, (), is_complete=True))


def wake(rig):
    """Have a gateway ask for a wake."""

    def write(obj):
        obj["metadata"].setdefault("annotations", {})[ANNOTATION_WAKE] = rig.clock().isoformat()

    rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, write)


def quiet(seconds=10**6, **facts):
    """Return what is known of a deployment that nobody called for so long."""
    idle = {"in_flight": 0, "held": 0, "quiet_s": seconds, "awake_workers": 1, "running": 0, "waiting": 0}
    return Activity(**{**idle, "mean_kv_cache_usage": 0.0, **facts})


async def until_due(rig):
    """Let time pass until the operator wants to look again, and all act; return how many seconds it were."""
    after_s = await rig.reconcile()
    assert after_s, f"the operator does not come by itself: {after_s}"
    rig.clock.step(after_s)
    await rig.settle()
    return after_s


async def idle(rig, rung, **spec):
    """Serve, and go down to a rung."""
    await rig.serving(lifecycle=LADDER, **spec)
    tell(rig)
    while rig.status.get("lifecycle", {}).get("rung") != rung:
        await until_due(rig)


def rungs(rig):
    return [event for event in rig.events if event.startswith(("Slept", "Woke"))]


async def asleep(rig, rung="Level1", *, replicas=4, **spec):
    """Serve with several replicas, and go down to a rung."""
    await idle(rig, rung, replicas=replicas, **spec)


def states(rig):
    return [rig.worker(index).state for index in range(len(rig.pods))]


def awake(rig):
    return states(rig).count(WorkerState.READY)
