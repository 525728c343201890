"""A node whose host memory gets short: members that sleep go deeper, who holds a slot stays, and all still wake."""

from __future__ import annotations

import pytest

from dormouse_kube.api import EVENTS, NODES
from dormouse_operator.model import AT_REST
from dormouse_operator.model.units import GIB


def short_of(rig, memory):
    """Have the node of all pods be of a size of which all may be taken, and each copy take 4 GiB."""
    rig.kube.put(NODES, {"metadata": {"name": "node"}, "status": {"allocatable": {"memory": memory}}})
    rig.node_percent = 100
    rig.restart_operator()
    for worker in (*rig.workers_of("a"), *rig.workers_of("b")):
        worker.host_copy_bytes = 4 * GIB


@pytest.mark.parametrize(
    ("memory", "state", "level"), [("10Gi", "ASLEEP", 1), ("8Gi", "ASLEEP", 2), ("4Gi", "STANDBY", 3)]
)
async def test_a_member_that_sleeps_goes_as_deep_as_its_node_needs_and_wakes_when_it_is_called(
    rig, memory, state, level
):
    await rig.serve_once("a", "b")
    assert rig.states() == {"a": ["ASLEEP"], "b": ["READY"]}
    short_of(rig, memory)
    await rig.steps(6, 0.5)
    assert rig.states() == {"a": [state], "b": ["READY"]}, "who holds the slot is not put to sleep for memory"
    assert rig.worker("a").sleep_level == level
    [sleeper] = rig.slot().sleepers
    assert sleeper.level == level
    rig.call("a")
    await rig.until(lambda: rig.num_running("a") == 1)
    assert rig.worker("b").state in AT_REST
    assert rig.node.devices["gpus-0"].most_seen == 1


async def test_two_that_sleep_on_a_short_node_go_to_level_2_before_one_goes_to_standby(rig):
    rig.member("c")
    await rig.until(lambda: len(rig.workers_of("c")) == 1)
    rig.worker("c").has_report = True
    await rig.serve_once("a", "b", "c")
    short_of(rig, "10Gi")
    await rig.steps(6, 0.5)
    assert [rig.worker(name).sleep_level for name in ("a", "b", "c")] == [2, 2, 0]
    told = [event["message"] for event in rig.kube.everything(EVENTS) if event["reason"] == "Evicted"]
    assert len(told) == 2
    assert all("went to level 2: pods of models take" in words for words in told)
