"""Pools without dynamic resource allocation: pods reserve the slots' devices, and members' pods name them."""

from __future__ import annotations

import pytest

from dormouse_kube.api import PODS
from dormouse_operator.model.pools import SlotPhase
from tests.operator_.pools.one_operator import POOL
from tests.operator_.pools.rig import PoolRig

DEVICE = {"reservation": {"resourceName": "example.com/gpu", "runtimeClassName": "gpus"}}
FIRST = "gpus-0-reservation"


@pytest.fixture
async def rig():
    rig = PoolRig()
    rig.pool(device=DEVICE)
    rig.member("a")
    rig.member("b")
    await rig.until(lambda: len(rig.workers_of("a")) == len(rig.workers_of("b")) == 1)
    return rig


def peek(rig, name):
    return rig.kube.peek(PODS, POOL.namespace, name)


def variables(rig, member):
    worker = peek(rig, rig.pods_of(member)[0])["spec"]["containers"][0]
    return {item["name"]: item.get("value") for item in worker["env"]}


async def test_members_see_the_device_that_their_slots_reservation_got_and_take_turns_on_it(rig):
    assert peek(rig, FIRST)["spec"]["containers"][0]["resources"]["limits"] == {"example.com/gpu": 1}
    for member in ("a", "b"):
        assert variables(rig, member)["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        spec = peek(rig, rig.pods_of(member)[0])["spec"]
        assert (spec["runtimeClassName"], spec.get("resourceClaims")) == ("gpus", None)
    await rig.serve_once("a", "b", "a")
    assert rig.worker("a").grant.device == "GPU-0"
    assert "get" not in {call.verb for call in rig.kube.calls if call.plural == "pods"}, "which operators may not"
    status, reason, message = rig.pool_condition("Allocated")
    assert (status, reason) == ("True", "Allocated")
    assert message.endswith("pods reserve them, and nothing keeps other pods of the node from them")


async def test_no_member_has_a_pod_before_its_slots_devices_are_known():
    rig = PoolRig()
    rig.node.reservations.free = []
    rig.pool(device=DEVICE)
    rig.member("a")
    await rig.steps(5, 1.0)
    assert rig.pods_of("a") == []
    assert rig.pool_condition("Allocated") == (
        "False",
        "WaitingForDevices",
        "slot gpus-0: pod gpus-0-reservation has no node",
    )
    assert "of its 1 slots 1 have no devices yet" in rig.condition("a", "Ready")[2]
    rig.node.reservations.free = ["GPU-7"]
    rig.operator.marked.clear()
    for _ in range(3):
        rig.node.tick()
        await rig.operator.look_at_pool()
    assert rig.operator.marked == [("a", set())], "nothing else would have it looked at"
    await rig.until(lambda: rig.workers_of("a"), seconds=1.0)
    assert variables(rig, "a")["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"


@pytest.mark.parametrize("loss", ["deleted", "ended"])
async def test_a_reservation_that_is_lost_is_left_by_everybody_before_another_one_is_made(rig, loss):
    await rig.serve_once("b", "a")
    before, old = {rig.worker(name).pod_uid for name in ("a", "b")}, peek(rig, FIRST)["metadata"]["uid"]
    if loss == "ended":
        rig.kube.edit(PODS, POOL.namespace, FIRST, lambda obj: obj["status"].update(phase="Failed", reason="Evicted"))
    else:
        rig.kube.finish_deletion(PODS, POOL.namespace, FIRST)
    rig.clock.step(15)
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"), seconds=1.0, limit=120)
    assert peek(rig, FIRST)["metadata"]["uid"] != old
    assert rig.worker("b").pod_uid not in before
    assert variables(rig, "b")["NVIDIA_VISIBLE_DEVICES"] != "GPU-0"


async def test_a_reservation_that_goes_keeps_its_device_until_members_have_left_it(rig):
    await rig.serve_once("b", "a")
    rig.node.reservations.is_slow = True
    await rig.operator.pools._writer.delete(PODS, POOL.namespace, FIRST, uid=peek(rig, FIRST)["metadata"]["uid"])
    rig.clock.step(15)
    await rig.until(lambda: rig.slot().phase is SlotPhase.FREE and not rig.pods_of("a"), seconds=1.0)
    await rig.steps(3, 1.0)
    assert rig.pods_of("a") == [], "the device is about to be somebody else's"
    rig.node.reservations.is_slow = False
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"), seconds=1.0, limit=120)
    assert variables(rig, "a")["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


async def test_of_two_slots_with_one_device_of_a_time_sliced_gpu_the_second_is_given_to_nobody():
    rig = PoolRig()
    rig.node.reservations.free = ["GPU-0", "GPU-0"]
    rig.pool(slots=2, device=DEVICE)
    rig.member("a")
    rig.member("b")
    await rig.until(lambda: len(rig.workers_of("a")) == len(rig.workers_of("b")) == 1)
    await rig.serve_once("a", "b")
    assert {variables(rig, name)["DORMOUSE_POOL_SLOT"] for name in ("a", "b")} == {"gpus-0"}
    status, reason, message = rig.pool_condition("Allocated")
    assert (status, reason) == ("False", "DeviceShared")
    assert message.startswith("slots gpus-0 and gpus-1 were given the same device, GPU-0")


async def test_a_released_pool_has_no_reservation_and_a_call_brings_it_back(rig):
    rig.pool(releaseAfterSeconds=60, device=DEVICE)
    rig.member("a", lifecycle={"level1AfterSeconds": 30})
    rig.member("b", lifecycle={"level1AfterSeconds": 30})
    await rig.serve_once("a")
    for _ in range(6):
        rig.clock.step(60)
        await rig.steps(4)
    assert rig.pods_of("a") == rig.pods_of("b") == []
    assert peek(rig, FIRST) is None
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"), seconds=1.0, limit=120)


async def test_a_slot_that_is_taken_away_gives_its_device_back(rig):
    rig.pool(slots=2, device=DEVICE)
    await rig.until(lambda: peek(rig, "gpus-1-reservation"), seconds=1.0)
    rig.pool(slots=1, device=DEVICE)
    await rig.until(lambda: peek(rig, "gpus-1-reservation") is None, seconds=1.0)
    assert peek(rig, FIRST)
