"""One pass over a pool: from what is recorded, there and asked for, to slots, commands, and when to look again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dormouse_operator.decide.condemned import first_epoch
from dormouse_operator.decide.pools import plan
from dormouse_operator.decide.pools.commands import (
    DeletePod,
    EndEngine,
    GrantDevice,
    SetGate,
    Sleep,
    Write,
)
from dormouse_operator.model import DeviceGrant, Lifecycle, WorkerState
from dormouse_operator.model.pool_observed import SlotClaim
from dormouse_operator.model.pools import Holding, Idleness, PoolPolicy, Sleeper, Slot, SlotPhase, TenantState
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW, a_deployment, a_worker
from tests.operator_.decide.pools.nouns import A, B, C, ago, later, refusal, replica
from tests.operator_.decide.pools.scene import CALLED, QUIET, Scene, asleep, free, holding, serving, standby

FOLLOWED = later(0.5)


# what is written


def test_who_is_called_is_given_a_free_slot_and_told_so_at_once():
    planned = Scene(free()).add("a", asleep(), activity=CALLED).plan()
    (slot,) = planned.slots
    assert (slot.phase, slot.next, slot.since, slot.epoch) == (SlotPhase.GRANTING, A, NOW, 6)
    assert planned.commands == (GrantDevice(A, 6, "i"),)
    assert [grant.replica for grant in planned.decision.grants] == [A]
    assert planned.demands[A.key].wanted == 1
    assert planned.tenants["s-0"][A].state is TenantState.ASLEEP


def test_slots_that_are_new_outrank_all_that_a_pool_of_before_told_and_recorded_ones_stay_as_they_are():
    fresh = Slot(name="s-1", since=NOW, epoch=first_epoch(NOW))
    assert Scene(free(), num_slots=2).plan().slots == (free(), fresh)


def test_the_sleepers_of_a_slot_are_written_with_their_levels_and_what_they_leave():
    scene = Scene(holding(B), free("s-1"), num_slots=2)
    scene.add("c", asleep(2, 7), asleep(1, 8)).add("b", serving(), gate_open=True).add("a", standby(sleep_level=9))
    first, second = scene.plan().slots
    assert first.sleepers == (
        Sleeper(replica=A, level=3, residual_bytes=0),
        Sleeper(replica=C, level=2, residual_bytes=7),
    )
    assert second.sleepers == (Sleeper(replica=replica("c", 1), level=1, residual_bytes=8),)


def test_a_holder_that_fell_asleep_is_no_sleeper_yet():
    (slot,) = Scene(holding(A)).add("a", asleep(grant=DeviceGrant(slot="s-0", slot_epoch=5))).plan().slots
    assert (slot.phase, slot.sleepers) == (SlotPhase.YIELDING, ())


def test_changes_that_follow_from_each_other_are_written_in_one_pass():
    """A has left, so B is next; then the grant follows that was written."""
    leaving = replace(holding(A), phase=SlotPhase.YIELDING, leaving=A, next=B)
    planned = Scene(leaving).add("a", asleep()).add("b", asleep(), activity=CALLED).plan()
    (slot,) = planned.slots
    assert (slot.phase, slot.next, slot.epoch) == (SlotPhase.GRANTING, B, 6)
    assert planned.commands == (GrantDevice(B, 6, "i"),)


@pytest.mark.parametrize(("num_writes", "rests"), [(8, True), (9, False)])
def test_a_slot_that_never_comes_to_rest_is_an_error_and_no_endless_loop(monkeypatch, num_writes, rests):
    def next_step(slot, *_):
        return Write(replace(slot, epoch=slot.epoch + 1)) if slot.epoch < 5 + num_writes else plan.commands.Wait()

    monkeypatch.setattr(plan.switch, "next_step", next_step)
    if rests:
        assert Scene(free()).plan().slots[0].epoch == 13
    else:
        with pytest.raises(AssertionError, match="s-0 never comes to rest"):
            Scene(free()).plan()


def test_it_is_recorded_as_long_as_no_slot_changes_nor_a_new_one_comes():
    at_rest = Scene(free(), free("s-1"), num_slots=2).add("a", asleep())
    assert at_rest.plan().is_recorded(at_rest.observed())
    changed = Scene(free(), free("s-1"), num_slots=2).add("a", asleep(), activity=CALLED)
    assert not changed.plan().is_recorded(changed.observed())
    new = Scene(free(), num_slots=2)
    assert not new.plan().is_recorded(new.observed())
    gone = Scene(free(), free("s-1"))
    assert gone.plan().slots == (free(),)
    assert gone.plan().is_recorded(gone.observed())


# who asks, and who has to leave


def test_of_a_pool_that_is_being_deleted_nobody_is_given_anything():
    planned = Scene(free(), is_deleting=True).add("a", asleep(), activity=CALLED).plan()
    assert (planned.demands, planned.commands, planned.due) == ({}, (), None)


def test_who_has_waited_is_known_from_before():
    scene = Scene(holding(B), waiting={"a": ago(9)}).add("a", asleep(), activity=CALLED)
    scene.add("b", serving(running_requests=1), activity=CALLED, gate_open=True)
    assert scene.plan().demands[A.key].waiting_since == ago(9)


def test_more_than_is_awake_is_asked_for_as_the_slots_are_recorded():
    """A replica that serves counts: its member does not wait for the one that it has."""
    scene = Scene(holding(A)).add("a", serving(), activity=CALLED, gate_open=True)
    assert scene.plan().demands[A.key].waiting_since is None


@pytest.mark.parametrize(("heard", "phase"), [(True, SlotPhase.YIELDING), (False, SlotPhase.HELD)])
def test_a_busy_holder_past_its_turn_leaves_for_who_waits_only_if_all_gateways_are_heard(heard, phase):
    scene = Scene(holding(A), waiting={"b": ago(99)}).add("b", asleep(), activity=CALLED, wanted_ago_s=0.0)
    scene.add("a", serving(running_requests=1), activity=CALLED, gate_open=True)
    assert scene.plan(gateways_heard=heard).slots[0].phase is phase


def test_for_who_does_not_fit_those_give_up_their_residue_that_are_called_least():
    coming = Slot(name="s-0", since=NOW, epoch=5, phase=SlotPhase.GRANTING, next=A)
    scene = Scene(coming).add("a", asleep(refused_slot_epoch=5, missing_bytes=1), activity=CALLED)
    for name, quiet_s in (("b", 8.0), ("c", 9.0)):
        scene.add(name, asleep(residual_bytes=7), activity=replace(QUIET, quiet_s=quiet_s))
    planned = scene.plan()
    assert planned.slots[0].deepening == (C,)
    assert planned.commands == (EndEngine(C, 6),)


def test_a_member_that_is_told_to_sleep_leaves_and_one_that_is_called_in_time_does_not():
    order = Lifecycle("Asleep", 60, sleep_level=1)
    ordered = a_deployment(key=A.key, lifecycle=order)
    planned = Scene(holding(A)).add("a", serving(request_counter=4), deployment=ordered).plan()
    assert planned.slots[0].phase is SlotPhase.YIELDING
    assert planned.commands == (Sleep(A, 1, 6, 4),)
    stays = Scene(holding(A)).add("a", serving(), gate_open=True).plan()
    assert (stays.slots, stays.commands) == ((holding(A),), ())


# commands


def test_gates_are_shut_by_the_pool_and_opened_by_the_member_s_own_pass():
    leaving = replace(holding(A), phase=SlotPhase.YIELDING, leaving=A)
    assert Scene(leaving).add("a", serving(), gate_open=True).plan().commands == (SetGate(A, is_open=False),)
    assert Scene(holding(A)).add("a", serving(), gate_open=False).plan().commands == ()


def crowd(*slots, **fields):
    """Return a scene in which sleepers leave more on slot s-1 than is set aside for two; b's wake is worth least."""
    policy = PoolPolicy(max_members_per_slot=2)
    scene = Scene(*slots, num_slots=2, policy=policy, **fields)
    for name, quiet_s in (("b", 90.0), ("c", 80.0), ("d", 70.0)):
        worker = asleep(residual_bytes=GIB, last_wake_s=1.0)
        scene.add(name, worker, activity=replace(QUIET, quiet_s=quiet_s), slots=("s-1",))
    return scene


def test_sleepers_that_crowd_a_slot_end_their_engines_there():
    assert crowd(free(), free("s-1", refusals=())).plan().commands == (EndEngine(B, 5),)
    other = crowd(holding(A), replace(free("s-1"), epoch=8)).add("a", serving(), gate_open=True)
    assert other.plan().commands == (EndEngine(B, 8),)


def test_no_sleeper_is_deepened_where_somebody_comes_or_goes():
    coming = Slot(name="s-1", since=NOW, epoch=5, phase=SlotPhase.GRANTING, next=A)
    scene = crowd(free(), coming)
    scene.add("a", a_worker(WorkerState.STARTING, grant=DeviceGrant(slot="s-1", slot_epoch=5)), slots=("s-1",))
    assert scene.plan().commands == ()


def test_who_holds_a_slot_by_now_is_not_deepened():
    """It counted among the sleepers when the pass began, and holds memory once its grant is written."""
    scene = crowd(free(), free("s-1"))
    scene.members[B.key] = replace(scene.members[B.key], activity=CALLED)
    assert scene.plan().commands == (GrantDevice(B, 6, "i"),)


def test_pods_leave_a_slot_that_goes_but_for_who_holds_it_or_goes_already():
    scene = Scene(free(), holding(B, name="s-1"))
    scene.add("a", asleep(), slots=("s-1",)).add("c", None, slots=("s-1",)).add("e", asleep(), slots=("s-0",))
    scene.add("d", asleep(), slots=("s-1",), is_deleting=True)
    scene.add("b", serving("s-1", running_requests=1), activity=CALLED, slots=("s-1",), gate_open=True)
    planned = scene.plan()
    assert planned.slots[1].phase is SlotPhase.YIELDING, "its holder leaves first"
    assert planned.commands == (SetGate(B, is_open=False),)
    scene.pool = replace(scene.pool, slots=(free(), free("s-1")))
    del scene.members[B.key]
    assert scene.plan().commands == (DeletePod(A), DeletePod(C))


def test_a_pod_without_a_container_waits_for_a_claim_that_is_made_anew():
    scene = Scene(free()).add("a", asleep()).add("b", None)
    scene.claims = {"s-0": SlotClaim(uid="c", is_ours=True, is_deleting=True)}
    assert scene.plan().commands == (DeletePod(A),)


@pytest.mark.parametrize(
    ("slot", "members", "claims"),
    [
        (holding(A, name="s-1"), {"a": serving("s-1")}, {}),
        (free("s-1"), {"a": asleep()}, {}),
        (free("s-1"), {}, {"s-1": SlotClaim(uid="c", is_ours=True)}),
    ],
    ids=["a holder", "a pod", "a claim"],
)
def test_a_slot_that_is_taken_away_is_recorded_for_as_long_as_anything_is_there(slot, members, claims):
    scene = Scene(free(), slot)
    for name, worker in members.items():
        scene.add(name, worker, slots=("s-1",))
    assert [kept.name for kept in scene.plan(claims=claims).slots] == ["s-0", "s-1"]


def test_a_slot_with_nothing_on_it_stays_while_it_is_wanted_and_goes_when_it_is_not():
    assert [slot.name for slot in Scene(free(), free("s-1"), num_slots=2).plan().slots] == ["s-0", "s-1"]
    assert [slot.name for slot in Scene(free(), free("s-1"), num_slots=1).plan().slots] == ["s-0"]


# when to look again


def test_a_pool_at_rest_is_not_looked_at_again_by_time():
    assert Scene(free()).add("a", asleep()).plan().due is None


def test_whoever_waits_is_looked_after_every_half_second():
    scene = Scene(holding(B), waiting={"a": ago(1)}).add("a", asleep(), activity=CALLED)
    scene.add("b", serving(running_requests=1), activity=CALLED, gate_open=True)
    assert scene.plan().due == FOLLOWED


def test_a_slot_on_its_way_is_looked_at_when_its_step_may_be_late():
    leaving = Slot(name="s-0", since=NOW, epoch=5, phase=SlotPhase.YIELDING, holders=(Holding(A, ago(9)),), leaving=A)
    draining = a_worker(WorkerState.DRAINING, running_requests=1, grant=DeviceGrant(slot="s-0", slot_epoch=5))
    assert Scene(leaving).add("a", draining).plan().due == later(0.2)


def test_a_replica_that_backs_off_is_looked_at_when_that_is_over():
    policy = PoolPolicy()
    slot = free(refusals=(refusal(A, ago_s=1),))
    assert Scene(slot).add("a", asleep()).plan().due == ago(1) + timedelta(seconds=policy.first_backoff_s)


def test_a_pool_at_rest_is_looked_at_when_its_devices_are_the_cluster_s_again():
    idle = {"release_after_s": 60, "idleness": Idleness(ago(20))}
    planned = Scene(free(), **idle).add("a", asleep()).plan()
    assert (planned.idleness, planned.due) == (Idleness(ago(20)), later(40))


@pytest.mark.parametrize(("heard", "released"), [(True, NOW), (False, None)])
def test_devices_are_released_after_their_time_if_all_gateways_are_heard(heard, released):
    scene = Scene(free(), release_after_s=60, idleness=Idleness(ago(60))).add("a", asleep())
    assert scene.plan(gateways_heard=heard).idleness == Idleness(ago(60), released)


def test_a_slot_that_somebody_was_given_in_this_pass_ends_the_pool_s_rest():
    scene = Scene(free(), release_after_s=60, idleness=Idleness(ago(60))).add("a", asleep(), activity=CALLED)
    assert scene.plan().idleness == Idleness()
