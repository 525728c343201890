"""What goes wrong in a switch: whoever refuses, hangs, dies or leaves too much, the slot is never shared, nor lost."""

from __future__ import annotations

import pytest

from dormouse_kube.api import GPU_POOLS, PODS, RESOURCE_CLAIMS
from dormouse_operator.model import WorkerState
from dormouse_operator.model.pools import SlotPhase
from dormouse_operator.model.units import GIB
from tests.operator_.pools.rig import POOL, Operator


@pytest.fixture
async def serving_a(rig):
    """Both have served once, and a holds the slot."""
    await rig.serve_once("b", "a")
    return rig


async def test_a_worker_that_refuses_to_sleep_ends_its_engine(serving_a):
    rig = serving_a
    rig.worker("a").refuses = {"sleep"}
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"))
    assert rig.worker("a").state is WorkerState.STANDBY
    assert [command for command in rig.worker("a").commands if command.startswith("sleep")][-3:] == [
        "sleep refused",
        "sleep refused",
        "sleep 3",
    ], "level 1, level 2, STANDBY"


async def test_a_worker_that_hangs_in_its_sleep_is_ended_at_its_deadline_and_other_slots_go_on(rig):
    rig.pool(slots=2)
    rig.member("c")
    await rig.until(lambda: len(rig.workers_of("c")) == 1)
    await rig.serve_once("b", "a", "c")
    rig.worker("a").hangs = {"sleep 1", "sleep 2"}
    rig.call("b")
    await rig.until(lambda: "sleep 1 hangs" in rig.worker("a").commands)
    begin = rig.clock()
    await rig.until(lambda: rig.num_running("b"), limit=100)
    assert 30 <= (rig.clock() - begin).total_seconds() <= 40, "drain_s and sleep_s"
    assert rig.worker("a").state is WorkerState.STANDBY


async def test_a_residue_above_the_reserve_is_given_up_before_the_next_takes_memory(serving_a):
    rig = serving_a
    rig.pool(maxMembersPerSlot=2, sleeperReserve="100Mi")
    rig.worker("a").residual_bytes = GIB
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"))
    assert rig.worker("a").state is WorkerState.STANDBY


async def test_a_worker_that_fails_to_wake_is_turned_away_and_the_other_wakes_again_if_it_is_called(serving_a):
    rig = serving_a
    rig.worker("b").refuses = {"wake"}
    rig.call("b")
    await rig.until(lambda: rig.slot().refusals)
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    assert rig.worker("a").commands[-1] == "wake_up"
    assert [event for event in rig.events if event.startswith("GrantRefused")]
    rig.worker("b").refuses = set()
    rig.finish("a")
    await rig.until(lambda: rig.num_running("b"))
    assert rig.slot().refusals == ()


async def test_a_worker_whose_golden_tokens_differ_ends_its_engine_before_another_takes_memory(serving_a):
    rig = serving_a
    await rig.serve_once("b", "a")
    rig.worker("b").refuses = {"golden"}
    rig.call("b")
    await rig.until(lambda: rig.slot().refusals)
    [refusal] = rig.slot().refusals
    assert (str(refusal.replica), refusal.missing_bytes) == ("team/b[0]", 0)
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    assert rig.worker("b").state is WorkerState.STANDBY, "what it had in memory is not believed again"
    rig.worker("b").refuses = set()
    rig.finish("a")
    await rig.until(lambda: rig.num_running("b"))
    assert rig.node.devices["gpus-0"].most_seen == 1


async def test_what_does_not_fit_says_how_many_bytes_are_missing_and_blocks_nobody(serving_a):
    rig = serving_a
    rig.worker("b").missing_bytes = 3 * GIB
    rig.call("b")
    await rig.until(lambda: rig.slot().refusals and rig.slot().refusals[0].times >= 2, limit=100)
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    await rig.steps(2)
    assert rig.condition("b", "Ready")[:2] == ("False", "SlotTooSmall")
    assert "3.00 GiB are missing" in rig.condition("b", "Degraded")[2]


async def test_an_engine_that_fails_gives_the_slot_to_who_waits(serving_a):
    rig = serving_a
    rig.worker("a").fail("Internal", "a test wants it")
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"))
    assert rig.worker("a").state is WorkerState.STANDBY


async def test_a_container_that_restarts_has_no_grant_and_waits_in_line(serving_a):
    rig = serving_a
    rig.call("a")
    rig.crash("a")
    assert (rig.worker("a").grant, rig.worker("a").instance) == (None, 2)
    await rig.until(lambda: rig.num_running("a"))
    assert str(rig.slot().holders[0].replica) == "team/a[0]"


async def test_a_front_that_is_dead_loses_its_pod_and_the_slot_is_free_when_that_is_gone(serving_a):
    rig = serving_a
    before = rig.pods_of("a")
    uid = rig.kube.peek(PODS, POOL.namespace, before[0])["metadata"]["uid"]
    lost = rig.workers.workers.pop(rig.kube.peek(PODS, POOL.namespace, before[0])["status"]["podIP"])
    rig.call("b")
    await rig.steps(4, 1.0)
    assert not rig.num_running("b"), "nobody knows what it holds"
    lost.device.give_back(lost)  # the kubelet ends it with its pod
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    assert [pod["metadata"]["uid"] for pod in rig.kube.everything(PODS)].count(uid) == 0


async def test_a_silent_node_fouls_the_slot_until_the_pod_is_gone(serving_a):
    rig = serving_a
    pod = rig.pods_of("a")[0]
    worker = rig.worker("a")
    rig.node.lose(pod)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    rig.kube.edit(
        PODS, POOL.namespace, pod, lambda obj: obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:30Z")
    )
    rig.kube.edit(PODS, POOL.namespace, pod, lambda obj: obj["status"]["conditions"].append(target))
    rig.call("b")
    await rig.until(lambda: rig.slot().phase is SlotPhase.FOULED, seconds=1.0)
    await rig.steps(5, 1.0)
    assert not rig.serves("b")
    assert rig.pool_condition("Fouled")[:2] == ("True", "SlotFouled")
    rig.node.lost.discard(pod)
    worker.device.give_back(worker)
    rig.kube.finish_deletion(PODS, POOL.namespace, pod)
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    assert rig.pool_condition("Fouled")[:2] == ("False", "AsExpected")


async def test_an_operator_that_is_new_at_every_step_comes_to_the_same_end(rig):
    for name in ("b", "a", "b"):
        rig.call(name)
        for _ in range(60):
            rig.restart_operator()
            await rig.step(0.2)
            if rig.num_running(name):
                break
        assert rig.num_running(name) == 1
        rig.finish(name)
    assert rig.states() == {"a": ["ASLEEP"], "b": ["READY"]}


async def test_an_operator_that_was_replaced_changes_nothing(serving_a):
    rig = serving_a
    old = rig.operator
    old.pump.pump()
    rig.restart_operator()
    rig.leader.epoch += 1
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"))
    status, commands = rig.kube.peek(GPU_POOLS, *POOL[:2])["status"], list(rig.worker("a").commands)
    await old.pools.reconcile(POOL)  # its watch hears nothing any more
    await rig.operator.look_at_pool()
    assert rig.kube.peek(GPU_POOLS, *POOL[:2])["status"]["slots"] == status["slots"]
    assert rig.worker("a").commands == commands
    rig.check()


async def test_a_second_operator_with_an_older_epoch_is_not_heard_by_workers(serving_a):
    rig = serving_a
    rig.worker("a").epoch = 7
    assert await Operator(rig.kube, rig.workers, rig.clock, rig.leader).look_at_pool() is not None
    assert rig.leader.epoch == 8, "it has to outrank what workers heard first"


async def test_a_tainted_device_is_left_by_everyone_and_the_next_claim_has_another(serving_a):
    """Kubernetes deletes the pods of a device that a DeviceTaintRule names, and keeps the claim while any is there."""
    rig = serving_a
    keep_while_used(rig)
    before = rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")["metadata"]["uid"]
    taken = [rig.pods_of(name)[0] for name in ("a", "b")]
    rig.node.lost |= set(taken)  # their ends take their time
    for pod in taken:
        rig.evict(pod)
    rig.call("b")
    await rig.steps(3, 1.0)
    assert "deletionTimestamp" in rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")["metadata"]
    assert rig.pool_condition("Allocated")[1] == "ClaimGoes"
    assert not rig.num_running("b")
    rig.node.lost.clear()
    await rig.steps(2, 1.0)
    rig.kube.finish_deletion(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    after = rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")["metadata"]
    assert after["uid"] != before
    assert "deletionTimestamp" not in after


@pytest.mark.parametrize("change", ["deallocated", "deleted"])
async def test_a_claim_that_somebody_takes_by_force_under_its_holder_is_left_and_made_anew(serving_a, change):
    rig = serving_a
    before = {rig.worker(name).pod_uid for name in ("a", "b")}
    if change == "deleted":
        rig.kube.finish_deletion(RESOURCE_CLAIMS, POOL.namespace, "gpus-0")
    else:
        rig.kube.edit(RESOURCE_CLAIMS, POOL.namespace, "gpus-0", lambda obj: obj.update(status={}))
    await rig.steps(2)
    assert rig.serves("a"), "an allocation is believed for a while"
    rig.clock.step(15)
    await rig.step()
    assert rig.pool_condition("Allocated")[:2] == ("False", "DevicesLost")
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    assert rig.worker("b").pod_uid not in before
    assert rig.pool_condition("Allocated")[:2] == ("True", "Allocated")


def keep_while_used(rig):
    """Put on the slot's claim what keeps it until its last pod is gone."""
    finalizers = ["resource.kubernetes.io/delete-protection"]
    rig.kube.edit(RESOURCE_CLAIMS, POOL.namespace, "gpus-0", lambda obj: obj["metadata"].update(finalizers=finalizers))
