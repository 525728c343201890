"""Pods that sleep without weights ask for less memory of their node, and have all of it back before they wake."""

from __future__ import annotations

import pytest

from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState
from dormouse_operator.model.units import GIB
from dormouse_operator.parse import parse_pod
from tests.operator_.pools.rig import PoolRig

FULL = 20 * GIB
SHRINKS = {"level1AfterSeconds": None, "shrinkRequests": True}
SIZE = {"uri": "pvc://models/a", "size": "16Gi"}


@pytest.fixture
async def rig():
    rig = PoolRig()
    rig.pool()
    rig.member("a", model=SIZE, lifecycle=SHRINKS)
    rig.member("b")
    await rig.until(lambda: len(rig.workers_of("a")) == len(rig.workers_of("b")) == 1)
    return rig


def memory(rig, name):
    return parse_pod(rig.kube.peek(PODS, "team", rig.pods_of(name)[0])).memory


async def test_a_member_in_standby_asks_for_what_a_front_takes_and_for_all_before_it_wakes(rig):
    await rig.until(lambda: memory(rig, "a").allocated_bytes == GIB)
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    assert memory(rig, "a").allocated_bytes == FULL
    assert rig.worker("a").commands[0] == "grant"
    assert not rig.slot().refusals


async def test_a_member_whose_node_has_no_memory_left_gives_its_turn_to_another(rig):
    await rig.until(lambda: memory(rig, "a").allocated_bytes == GIB)
    rig.node.is_full = True
    rig.call("a")
    await rig.until(lambda: rig.slot().refusals, seconds=1.0)
    assert rig.slot().refusals[0].reason == "NodeFull"
    assert "grant" not in rig.worker("a").commands
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    rig.finish("b")
    rig.node.is_full = False
    await rig.until(lambda: rig.num_running("a"), seconds=1.0, limit=120)


async def test_a_member_that_keeps_a_copy_of_its_weights_keeps_its_memory(rig):
    await rig.serve_once("a", "b")
    await rig.steps(3)
    assert rig.worker("a").sleep_level == 1
    assert memory(rig, "a").requested_bytes == FULL


async def test_it_asks_for_all_again_where_it_should_not_shrink_any_more(rig):
    await rig.until(lambda: memory(rig, "a").allocated_bytes == GIB)
    rig.member("a", lifecycle={"level1AfterSeconds": None})
    await rig.until(lambda: memory(rig, "a").allocated_bytes == FULL)
    assert rig.worker("a").state is WorkerState.STANDBY
