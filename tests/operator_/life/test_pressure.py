"""Copies of sleeping models keep to a budget of host memory on each node. In virtual time."""

from __future__ import annotations

import pytest

from dormouse_kube.api import NODES
from dormouse_kube.errors import Forbidden
from dormouse_operator.model import Key, WorkerState
from dormouse_operator.model.units import GIB
from dormouse_operator.observe.nodes import NodeBook
from tests.operator_.ladders import asleep, awake, tell, wake


def limit(rig, gib, *, copy_gib=2):
    """Set the budget, and have each worker keep a copy of this size."""
    rig.host_limit_bytes = gib * GIB
    rig.restart_operator()
    for worker in rig.workers.workers.values():
        worker.host_copy_bytes = copy_gib * GIB


async def sleeps(rig, *, gib, replicas=1):
    """Serve, and fall asleep where copies may take so much."""
    await rig.serving(replicas=replicas)
    limit(rig, gib)
    tell(rig)
    rig.clock.step(600)
    tell(rig, last_request_s=rig.clock().timestamp() - 600)
    while rig.status["phase"] != "Asleep":
        await rig.settle()
        rig.clock.step(await rig.reconcile() or 0)
    await rig.settle()


@pytest.mark.parametrize(("gib", "level"), [(2, 1), (1, 2)])
async def test_a_copy_that_does_not_fit_goes_and_the_event_says_why(rig, gib, level):
    await sleeps(rig, gib=gib)
    assert rig.worker().sleep_level == level
    words = (
        "goes to sleep level 2: copies of sleeping models take 2.00 GiB on node node, maxSleepingHostBytes is 1.00 GiB"
    )
    assert (f"Evicted: {words}" in rig.events) == (level == 2)
    lifecycle = rig.status["lifecycle"]
    assert (lifecycle["rung"], lifecycle["reason"]) == (f"Level{level}", "pressure" if level == 2 else "idle")
    assert rig.marked == ([rig.key] if level == 2 else [])
    assert repr(rig.host_memory) == "HostMemoryBook(1 hold something, 0 have to go deeper)"
    assert rig.status["phase"] == "Asleep"
    wake(rig)
    await rig.settle()
    assert rig.status["lastActuation"]["path"] == f"level{level}"


async def test_replicas_count_together_and_who_was_evicted_stays_so(rig):
    await sleeps(rig, gib=3, replicas=2)
    assert [rig.worker(place).sleep_level for place in (0, 1)] == [2, 2]
    before = rig.status
    rig.host_limit_bytes = 2**50
    rig.restart_operator()
    tell(rig)
    await rig.settle()
    assert rig.status == before


async def test_a_copy_goes_though_a_gateway_is_not_heard_of(rig):
    await sleeps(rig, gib=4)
    limit(rig, 1)
    await rig.settle()
    assert rig.worker().sleep_level == 2


async def test_replicas_that_sleep_while_others_serve_give_their_copies_up_too(rig):
    await asleep(rig)
    limit(rig, 100)
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    assert awake(rig) == 1
    limit(rig, 5)
    tell(rig, in_flight=1)
    await rig.settle()
    await rig.settle()
    assert sorted(rig.worker(place).sleep_level for place in range(4)) == [0, 2, 2, 2]
    assert awake(rig) == 1
    told = [event for event in rig.events if event.startswith("Evicted")]
    words = "copies of sleeping models take 6.00 GiB on node node, maxSleepingHostBytes is 5.00 GiB"
    assert told == [f"Evicted: 3 replicas that sleep went to level 2: {words}"]
    assert rig.host_memory.pressure_on(Key("team", "tiny")) is None
    assert rig.status["phase"] == "Active"


async def test_a_node_that_is_short_sends_sleepers_to_level_2_then_to_standby_and_a_request_wakes_them(rig):
    rig.kube.put(NODES, {"metadata": {"name": "node"}, "status": {"allocatable": {"memory": "8Gi"}}})
    rig.node_percent = 50
    await sleeps(rig, gib=100, replicas=2)
    told = [event for event in rig.events if event.startswith("Evicted")]
    words = "pods of models take 6.00 GiB of host memory on node node, maxNodeMemoryPercent 50 of 8.00 GiB is 4.00 GiB"
    assert (told, rig.worker().sleep_level) == ([f"Evicted: goes to sleep level 2: {words}"], 2)
    assert repr(NodeBook(rig.kube, clock=lambda: 0.0)) == "NodeBook(0 nodes)"
    rig.kube.edit(NODES, "", "node", lambda node: node["status"]["allocatable"].update(memory="3Gi"))
    rig.restart_operator()
    tell(rig)
    await rig.settle()
    assert [rig.worker(place).state for place in (0, 1)] == [WorkerState.STANDBY] * 2
    lifecycle = rig.status["lifecycle"]
    assert (lifecycle["rung"], lifecycle["reason"], rig.status["phase"]) == ("Level3", "pressure", "Asleep")
    wake(rig)
    await rig.settle()
    rig.finish_loading()
    await rig.settle()
    assert awake(rig) >= 1


async def test_an_operator_that_may_not_read_nodes_limits_copies_alone(rig):
    rig.kube.fail("get", NODES, Forbidden("nodes is forbidden"))
    rig.node_percent = 1
    await sleeps(rig, gib=100)
    assert rig.worker().sleep_level == 1
