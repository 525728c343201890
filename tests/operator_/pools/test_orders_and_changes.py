"""What people order of members and pools: sleep, wake, other slots, another pool, none at all."""

from __future__ import annotations

import pytest

from dormouse_api.names import ANNOTATION_WAKE
from dormouse_kube.api import GPU_POOLS, INFERENCE_DEPLOYMENTS, PODS, RESOURCE_CLAIMS
from dormouse_kube.errors import Unavailable
from dormouse_operator.model import WorkerState
from dormouse_operator.model.pools import SlotPhase
from tests.operator_.pools.rig import OTHER, POOL, go_slowly


async def test_a_member_that_is_ordered_asleep_gives_its_slot_up_and_is_not_woken_by_calls(rig):
    await rig.serve_once("a")
    rig.member("a", lifecycle={"desiredState": "Asleep", "sleepLevel": 2})
    await rig.until(lambda: rig.slot().phase is SlotPhase.FREE)
    assert (rig.worker("a").state, rig.worker("a").sleep_level) == (WorkerState.ASLEEP, 2)
    assert rig.worker("a").grant is None
    rig.call("a")
    await rig.steps(10, 1.0)
    assert not rig.serves("a")


async def test_an_order_to_be_active_counts_as_a_call_and_takes_turns_with_others(rig):
    rig.member("a", lifecycle={"desiredState": "Active"})
    await rig.until(lambda: rig.serves("a"))
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"), limit=400, seconds=1.0)
    rig.finish("b")
    await rig.until(lambda: rig.serves("a"))


async def test_the_ladder_gives_the_slot_up_for_nobody_and_a_call_takes_it_again(rig):
    rig.member("a", lifecycle={"level1AfterSeconds": 600})
    await rig.serve_once("a")
    await rig.steps(3)
    for _ in range(3):
        rig.clock.step(300)
        await rig.steps(6)
    assert rig.status("a")["lifecycle"]["rung"] == "Level1"
    assert rig.slot().phase is SlotPhase.FREE
    assert rig.worker("a").state is WorkerState.ASLEEP
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    assert rig.worker("a").commands.count("initialize_cache") == 1


async def test_a_wake_that_somebody_asks_for_is_one_call(rig):
    await rig.serve_once("b", "a")

    def ask(obj):
        obj["metadata"].setdefault("annotations", {})[ANNOTATION_WAKE] = rig.clock().isoformat()

    rig.clock.step(5)
    rig.kube.edit(INFERENCE_DEPLOYMENTS, POOL.namespace, "b", ask)
    await rig.until(lambda: rig.serves("b"))
    await rig.steps(3, 1.0)
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    rig.finish("a")
    await rig.steps(10, 1.0)
    assert rig.serves("a"), "it was followed once"


async def test_no_member_surges_and_its_new_pod_wakes_on_demand(rig):
    await rig.serve_once("a")
    rig.member("a", engine={"device": "cuda", "maxNumSeqs": 4})
    for _ in range(20):
        await rig.step(1.0)
        assert len(rig.pods_of("a")) <= 1
    assert rig.worker("a").state is WorkerState.STANDBY
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))


async def test_a_member_that_begins_to_wait_is_looked_at_once_that_is_written(rig):
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    rig.operator.marked.clear()
    rig.call("b")
    await rig.step()
    assert ("b", {"b"}) in rig.operator.marked
    assert all("b" in waiting for name, waiting in rig.operator.marked if name == "b")
    assert rig.condition("b", "Ready")[1] == "WaitsForSlot"


async def test_members_are_told_of_a_release_though_the_answer_to_its_write_was_lost(rig):
    """The next pass finds it written: nothing of it is news, but for who was told of nothing."""
    rig.pool(releaseAfterSeconds=60)
    await rig.steps(2, 1.0)
    rig.clock.step(60)
    rig.kube.lose_answer(GPU_POOLS, Unavailable("the connection broke"))
    await rig.operator.look_at_pool()
    assert "releasedSince" in rig.kube.peek(GPU_POOLS, *POOL[:2])["status"], "it was written"
    rig.operator.marked.clear()
    await rig.operator.look_at_pool()
    assert {name for name, _ in rig.operator.marked} == {"a", "b"}


async def test_a_member_says_how_deep_it_sleeps_as_gateways_read_it_and_from_where_it_came(rig):
    await rig.steps(3)
    assert rig.condition("a", "Asleep")[2].endswith("it sleeps at level 3")
    await rig.serve_once("a")
    assert rig.status("a")["lastActuation"]["path"] == "level3"
    await rig.serve_once("b")
    await rig.until(lambda: rig.condition("a", "Asleep")[2].endswith("it sleeps at level 1"))
    await rig.serve_once("a")
    await rig.steps(3)
    assert rig.status("a")["lastActuation"]["path"] == "level1"


async def test_slots_lowered_below_a_holder_move_its_pod_and_lose_no_request(rig):
    rig.pool(slots=2)
    rig.member("c")
    await rig.until(lambda: len(rig.workers_of("c")) == 1)
    moved = next(name for name in ("a", "b", "c") if placed(rig, name) == "gpus-1")
    rig.call(moved)
    await rig.until(lambda: rig.num_running(moved))
    rig.pool(slots=1)
    await rig.until(lambda: "gpus-1" not in rig.slots(), limit=120, seconds=1.0)
    await rig.until(lambda: placed(rig, moved) == "gpus-0", seconds=1.0)
    rig.call(moved)
    await rig.until(lambda: rig.num_running(moved), limit=200, seconds=1.0)


def placed(rig, name):
    pod = rig.kube.peek(PODS, POOL.namespace, rig.pods_of(name)[0]) if rig.pods_of(name) else None
    return pod["spec"]["resourceClaims"][0]["resourceClaimName"] if pod else ""


async def test_a_member_that_needs_other_slots_than_the_pool_has_is_not_accepted(rig):
    rig.member("c", parallelism={"tensor": 2})
    await rig.steps(3)
    assert rig.pods_of("c") == []
    assert rig.condition("c", "Accepted")[:2] == ("False", "PoolUnfit")
    assert "spec.parallelism.tensor is 2" in rig.condition("c", "Accepted")[2]


async def test_a_member_without_a_place_says_so_with_numbers(rig):
    rig.pool(maxMembersPerSlot=2)
    rig.member("c")
    await rig.steps(4)
    assert rig.pods_of("c") == []
    assert rig.condition("c", "Scheduled")[:2] == ("False", "NoPlace")


async def test_a_deleted_pool_leaves_its_holder_serving_and_takes_the_pods_of_who_sleeps(rig):
    await rig.serve_once("b", "a")
    rig.call("a")
    rig.kube.finish_deletion(GPU_POOLS, *POOL[:2])
    await rig.until(lambda: rig.pods_of("b") == [], seconds=1.0)
    await rig.steps(5, 1.0)
    assert rig.num_running("a") == 1
    assert rig.pods_of("b") == []
    assert rig.condition("b", "Ready")[:2] == ("False", "PoolNotFound")
    assert "there is no GpuPool of that name" in rig.condition("b", "Ready")[2]


async def test_a_pool_made_anew_outranks_the_last_and_its_claims_are_made_once_the_old_ones_are_gone(rig):
    await rig.serve_once("b", "a")
    claim = rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")
    rig.kube.finish_deletion(GPU_POOLS, *POOL[:2])
    rig.kube.edit(RESOURCE_CLAIMS, POOL.namespace, "gpus-0", go_slowly)
    await rig.until(lambda: rig.pods_of("b") == [], seconds=1.0)
    rig.pool()
    rig.call("b")
    await rig.until(lambda: rig.workers_of("a") == [], seconds=1.0)
    rig.kube.finish_deletion(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    assert rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")["metadata"]["uid"] != claim["metadata"]["uid"]
    assert rig.pool_condition("Allocated")[1] != "ClaimGoes"


@pytest.mark.parametrize("is_awake", [False, True])
async def test_a_pool_made_anew_with_fewer_slots_moves_who_was_on_the_others(rig, is_awake):
    rig.pool(slots=2)
    rig.member("c")
    await rig.until(lambda: rig.pods_of("c") and placed(rig, "c") == "gpus-1")
    if is_awake:
        await rig.serve_once("c")
    rig.delete_pool()
    rig.pool(slots=1)
    rig.restart_operator()
    await rig.until(lambda: placed(rig, "c") == "gpus-0", seconds=1.0)
    rig.call("c")
    await rig.until(lambda: rig.num_running("c"), seconds=1.0)


async def test_a_member_that_nobody_calls_for_long_has_no_pod_and_a_call_brings_it_back(rig):
    rig.member("a", lifecycle={"level1AfterSeconds": 60, "zeroAfterSeconds": 600})
    await rig.serve_once("a")
    for _ in range(4):
        rig.clock.step(300)
        await rig.steps(6)
    assert rig.pods_of("a") == [], "whose claim nobody uses is deallocated by Kubernetes"
    assert rig.status("a")["phase"] == "Zero"
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"), seconds=1.0)


async def test_a_member_that_moves_to_another_pool_leaves_its_slot(rig):
    await rig.serve_once("a")
    rig.other_pool()
    rig.member("a", gpu={"pool": {"name": OTHER}})
    await rig.until(lambda: placed(rig, "a") == f"{OTHER}-0", seconds=1.0)
    await rig.until(lambda: rig.slot().phase is SlotPhase.FREE, seconds=1.0)


async def test_a_deleted_holder_frees_its_slot_when_its_pod_is_gone(rig):
    await rig.serve_once("b", "a")
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, POOL.namespace, "a")
    rig.held.pop("a")
    rig.call("b")
    await rig.steps(3, 1.0)
    rig.check()
    rig.kube.collect_garbage()
    for address, worker in list(rig.workers.workers.items()):
        if not any(pod["status"].get("podIP") == address for pod in rig.kube.everything(PODS)):
            worker.device.give_back(rig.workers.workers.pop(address))
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)


async def test_two_replicas_are_on_slots_of_their_own_and_the_load_decides_how_many_are_awake(rig):
    rig.pool(slots=2)
    rig.member("a", replicas=2)
    await rig.until(lambda: len(rig.workers_of("a")) == 2)
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    await rig.steps(6, 1.0)
    assert sorted(rig.states()["a"]) == ["READY", "STANDBY"]
    rig.call("a", 200)
    await rig.until(lambda: rig.states()["a"] == ["READY", "READY"], seconds=1.0)


async def test_an_unheard_gateway_keeps_busy_holders_and_its_silence_puts_nobody_to_sleep(rig):
    await rig.serve_once("b", "a")
    rig.operator.activities.expect("b:1")
    rig.clock.step(100)
    await rig.steps(5, 1.0)
    assert rig.serves("a")
    rig.operator.activities.drop("b:1")


async def test_the_claim_of_a_slot_that_is_taken_away_goes_once_nobody_has_a_pod_there_and_nobody_elses_does(rig):
    rig.pool(slots=3)
    await rig.until(lambda: rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-2"))
    rig.kube.finish_deletion(RESOURCE_CLAIMS, POOL.namespace, "gpus-1")
    rig.kube.put(RESOURCE_CLAIMS, {"metadata": {"namespace": POOL.namespace, "name": "gpus-1"}, "spec": {}})
    rig.pool(slots=1)
    await rig.until(lambda: not rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-2"), seconds=1.0)
    await rig.until(lambda: list(rig.slots()) == ["gpus-0"], seconds=1.0)
    assert rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-1"), "of which nobody said that it is the pool's"
    assert rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")
