"""Two models on one slot: who is called is woken, who is called no more gives the slot up, and nobody overlaps."""

from __future__ import annotations

from dormouse_kube.api import RESOURCE_CLAIMS
from dormouse_operator.model import WorkerState
from dormouse_operator.model.pools import SlotPhase
from dormouse_operator.model.units import GIB


async def test_members_begin_without_an_engine_process_and_their_slot_has_a_claim_of_the_pools(rig):
    await rig.steps(3)
    assert rig.states() == {"a": ["STANDBY"], "b": ["STANDBY"]}
    assert rig.slot().phase is SlotPhase.FREE
    claim = rig.kube.peek(RESOURCE_CLAIMS, "team", "gpus-0")
    assert claim["metadata"]["ownerReferences"][0]["kind"] == "GpuPool"
    assert rig.status("a")["phase"] == "Asleep"
    assert rig.condition("a", "Ready")[:2] == ("True", "Asleep")


async def test_a_request_wakes_its_model_and_one_for_the_other_hands_the_slot_on(rig):
    rig.call("a")
    await rig.until(lambda: rig.num_running("a") == 1)
    assert rig.status("a")["phase"] == "Active"
    rig.finish("a")
    rig.call("b")
    await rig.until(lambda: rig.num_running("b") == 1)
    assert rig.states() == {"a": ["ASLEEP"], "b": ["READY"]}
    assert [str(holding.replica) for holding in rig.slot().holders] == ["team/b[0]"]
    assert rig.node.devices["gpus-0"].most_seen == 1
    assert "Granted: slot gpus-0 is given to team/b[0]" in rig.events


async def test_who_was_asleep_wakes_with_the_blocks_that_were_agreed(rig):
    for name in ("a", "b", "a"):
        rig.call(name)
        await rig.until(lambda name=name: rig.num_running(name))
        rig.finish(name)
    assert rig.worker("a").allocated == rig.status("a")["kvCache"]["numGpuBlocks"] == 2000
    assert rig.worker("a").commands.count("initialize_cache") == 1
    assert rig.status("a")["lastActuation"]["path"] == "level1"


async def test_a_busy_model_keeps_its_slot_for_its_turn_and_then_its_streams_are_parked(rig):
    await rig.serve_once("b")
    rig.call("a", 2)
    await rig.until(lambda: rig.num_running("a") == 2)
    rig.call("b")
    await rig.steps(20, 0.5)
    assert rig.serves("a"), "its turn is 20 s"
    assert rig.condition("b", "Ready")[:2] == ("False", "WaitsForSlot")
    assert "gpus-0 by team/a[0]" in rig.condition("b", "Ready")[2]
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    assert rig.worker("a").state is WorkerState.ASLEEP
    assert "abort" in rig.worker("a").commands, "its requests had their time"


async def test_the_first_engine_on_a_device_leaves_what_is_the_sleepers_and_is_woken_as_all_others(rig):
    for name in ("a", "b"):
        rig.worker(name).has_report = False
    await rig.serve_once("a")
    assert rig.worker("a").grant.budget_bytes == 0, "nobody has measured the device"
    assert (rig.worker("a").grant.reserved_bytes, rig.worker("a").grant.awake_per_slot) == (8 * GIB, 1)
    await rig.serve_once("b")
    assert rig.worker("b").grant.budget_bytes == int(0.9 * 80 * GIB) - 8 * GIB
    assert rig.worker("a").state is WorkerState.ASLEEP
    await rig.serve_once("a", "b", "a")
    assert rig.worker("b").state is WorkerState.ASLEEP
    assert rig.worker("a").commands.count("initialize_cache") == 1
    assert rig.worker("b").commands.count("initialize_cache") == 1
    assert not rig.slot().refusals


async def test_a_sleeper_with_more_than_a_lowered_bound_is_started_anew_within_it(rig):
    await rig.serve_once("a", "b")
    assert rig.worker("a").state is WorkerState.ASLEEP
    rig.pool(sleeperReserve="2Gi")
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"), limit=200)
    assert "engine is too big" in rig.worker("a").commands
    assert rig.worker("a").grant.budget_bytes == int(0.9 * 80 * GIB) - 16 * GIB
    rig.finish("a")
    assert rig.worker("b").state is WorkerState.STANDBY, "it would not have been woken either"
