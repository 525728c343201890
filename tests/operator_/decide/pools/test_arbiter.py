"""Who is given a slot, who has to leave one, and when: one rule, one table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide.pools.arbiter import Decision, Grant, Yield, decide
from dormouse_operator.model.pools import Sleeper, SlotPhase
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import (
    POLICY,
    A,
    B,
    C,
    demand,
    demands,
    fouled,
    free,
    granting,
    held,
    key,
    later,
    refusal,
    replica,
    yielding,
)

PRIORITY = replace(POLICY, order="Priority")
TURN_S = POLICY.min_active_s


def decided(slots, *asked, policy=POLICY, **fields):
    return decide(slots, demands(*asked), policy, NOW, **fields)


def test_who_waits_for_a_slot_that_nobody_holds_is_given_it():
    decision = decided([free()], demand("b", waited_s=0))
    assert decision == Decision(grants=(Grant("s", B),))
    slot = decision.apply_to([free()], NOW)["s"]
    assert (slot.phase, slot.next, slot.epoch, slot.since) == (SlotPhase.GRANTING, B, 1, NOW)


def test_nobody_moves_for_who_does_not_wait():
    assert decided([held(A)], demand("a", wanted=0), demand("b", wanted=0)) == Decision()
    assert decided([held(A)], demand("a")) == Decision(), "it has what it wants"


def test_an_idle_holder_leaves_at_once():
    decision = decided([held(A, for_s=0)], demand("a", wanted=0), demand("b", waited_s=0))
    assert decision == Decision(yields=(Yield("s", A, B),))
    slot = decision.apply_to([held(A)], NOW)["s"]
    assert (slot.phase, slot.leaving, slot.next, slot.epoch) == (SlotPhase.YIELDING, A, B, 1)


def test_a_holder_that_is_no_member_any_more_leaves_at_once():
    assert decided([held(A, for_s=0)], demand("b", waited_s=0)).yields == (Yield("s", A, B),)


@pytest.mark.parametrize(
    ("served_s", "waited_s", "due_s"),
    [
        (TURN_S, POLICY.patience_s, None),
        (TURN_S - 1, 60, 1),
        (TURN_S + 60, POLICY.patience_s - 0.5, 0.5),
        (TURN_S - 3, POLICY.patience_s - 1, 3),
    ],
    ids=["both over", "its turn is not over", "the waiter has patience left", "the later of both counts"],
)
def test_a_busy_holder_leaves_after_its_turn_and_the_waiters_patience(served_s, waited_s, due_s):
    decision = decided([held(A, for_s=served_s)], demand("a"), demand("b", waited_s=waited_s))
    assert decision.yields == (() if due_s else (Yield("s", A, B),))
    assert decision.due == (later(due_s) if due_s else None)


def test_a_heavier_member_has_longer_turns():
    heavy, waiter = demand("a", weight=3.0), demand("b", waited_s=60)
    assert decided([held(A, for_s=3 * TURN_S - 1)], heavy, waiter).due == later(1)
    assert decided([held(A, for_s=3 * TURN_S)], heavy, waiter).yields


def test_a_switch_that_takes_long_makes_turns_long():
    slow, saver = demand("b", waited_s=999, wake_s=5.0), demand("a", sleep_s=3.0)
    assert POLICY.max_switching_share == 0.1
    assert decided([held(A, for_s=71)], saver, slow).due == later(1), "9 × 8 s"
    assert decided([held(A, for_s=72)], saver, slow).yields
    assert decided([held(A, for_s=44)], replace(saver, places=()), slow).due == later(1), "9 × 5 s: no more is known"


def test_while_a_gateway_is_not_heard_of_no_busy_holder_leaves_and_an_idle_one_does():
    waiter = demand("b", waited_s=999)
    assert decided([held(A)], demand("a"), waiter, gateways_heard=False) == Decision(starving=(key("b"),))
    assert decided([held(A)], demand("a", wanted=0), waiter, gateways_heard=False).yields == (Yield("s", A, B),)
    assert decided([free()], waiter, gateways_heard=False).grants == (Grant("s", B),)


def test_while_a_gateway_is_not_heard_of_a_second_replica_is_not_one_too_many():
    slots = [held(A, name="s"), held(replica("a", 1), name="t")]
    twice, waiter = demand("a", "s", "t", wanted=1), demand("b", waited_s=0)
    assert decided(slots, twice, waiter).yields == (Yield("s", A, B),)
    assert not decided(slots, twice, waiter, gateways_heard=False).yields


def test_who_has_waited_longer_is_first_and_weights_count():
    two = [demand("b", waited_s=10), demand("c", waited_s=11)]
    assert decided([free()], *two).grants == (Grant("s", C),)
    two[0] = demand("b", waited_s=10, weight=1.2)
    assert decided([free()], *two).grants == (Grant("s", B),)


def test_of_equals_the_first_by_name_is_first():
    assert decided([free()], demand("c", waited_s=1), demand("b", waited_s=1)).grants == (Grant("s", B),)


def test_in_the_order_of_priority_a_higher_one_is_first_until_the_lower_has_waited_long_enough():
    high = demand("b", waited_s=0, priority=2)
    assert decided([free()], high, demand("c", waited_s=59), policy=PRIORITY).grants == (Grant("s", B),)
    assert decided([free()], high, demand("c", waited_s=61), policy=PRIORITY).grants == (Grant("s", C),)
    assert decided([free()], high, demand("c", waited_s=1)).grants == (Grant("s", C),), "Fair knows no priority"


def test_in_the_order_of_priority_a_busy_holder_leaves_for_who_has_come_up_to_it():
    holder = demand("a", priority=2)
    slots = [held(A, for_s=999)]
    assert decided(slots, holder, demand("b", waited_s=59), policy=PRIORITY).due == later(1)
    assert decided(slots, holder, demand("b", waited_s=60), policy=PRIORITY).yields
    assert decided(slots, holder, demand("b", waited_s=1, priority=5), policy=PRIORITY).due == later(1), "patience"
    assert decided(slots, holder, demand("b", waited_s=POLICY.patience_s)).yields, "Fair knows no priority"


def test_a_replica_whose_wake_failed_backs_off_and_holds_nobody_up():
    slots = [free(refusals=(refusal(B, ago_s=4),))]
    assert decided(slots, demand("b", waited_s=60), demand("c", waited_s=1)).grants == (Grant("s", C),)
    assert decided(slots, demand("b", waited_s=60)) == Decision(due=later(1))
    assert decided([free(refusals=(refusal(B, ago_s=5),))], demand("b", waited_s=60)).grants == (Grant("s", B),)


@pytest.mark.parametrize(("times", "backoff_s"), [(1, 5), (2, 10), (5, 80), (7, 300), (2000, 300)])
def test_the_backoff_doubles_up_to_its_limit(times, backoff_s):
    slots = [free(refusals=(refusal(B, times=times),))]
    assert decided(slots, demand("b", waited_s=120)).due == later(backoff_s)


def test_a_member_is_woken_where_there_is_room_and_where_it_wakes_soonest():
    wide = demand("b", "s", "t", "u", waited_s=0)
    fast = replace(wide, places=(*wide.places[:2], wide.places[2]._replace(wake_s=0.5)))
    slots = [held(A), free("t"), free("u")]
    assert decided(slots, demand("a", wanted=0), wide).grants == (Grant("t", replica("b", 1)),)
    assert decided(slots, demand("a", wanted=0), fast).grants == (Grant("u", replica("b", 2)),)


def test_of_idle_holders_the_least_valuable_leaves_and_no_busy_one():
    slots = [held(A, name="s"), held(C, name="t"), held(replica("d"), name="u", for_s=9999)]
    waiter, busy = demand("b", "s", "t", "u", waited_s=99), demand("d", "u")
    recent, old = demand("a", wanted=0, quiet_s=10), demand("c", "t", wanted=0, quiet_s=99)
    assert decided(slots, waiter, busy, recent, old).yields == (Yield("t", C, replica("b", 1)),)
    dear = replace(old, places=(old.places[0]._replace(wake_s=20.0),))
    assert decided(slots, waiter, busy, recent, dear).yields == (Yield("s", A, B),)


def test_of_busy_holders_the_one_that_could_have_left_first_leaves():
    slots = [held(A, name="s", for_s=50), held(C, name="t", for_s=60)]
    asked = [demand("a"), demand("c", "t"), demand("b", "s", "t", waited_s=99)]
    assert decided(slots, *asked).yields == (Yield("t", C, replica("b", 1)),)


@pytest.mark.parametrize("slot", [granting(C), yielding(A, C), fouled(A)], ids=lambda slot: slot.phase)
def test_a_slot_where_something_is_under_way_is_left_alone(slot):
    assert decided([slot], demand("a", wanted=0), demand("b", waited_s=120)) == Decision(starving=(key("b"),))


def test_a_slot_that_is_not_known_is_no_place():
    assert decided([], demand("b", waited_s=120)) == Decision(starving=(key("b"),))


def test_a_slot_changes_once_in_a_pass_and_the_next_in_line_takes_another():
    slots = [free("s"), free("t")]
    first, second = demand("b", "s", "t", waited_s=9), demand("c", "s", "t", waited_s=8)
    third = demand("d", "s", "t", waited_s=7)
    assert decided(slots, first, second, third).grants == (Grant("s", B), Grant("t", replica("c", 1)))


def test_who_is_on_its_way_does_not_wait_any_more():
    for slot in (granting(B), yielding(A, B)):
        assert decided([slot, free("t")], demand("b", "s", "t", waited_s=9)) == Decision()


def test_who_leaves_waits_again_and_may_be_woken_elsewhere():
    asked = demand("a", "s", "t", waited_s=1)
    assert decided([yielding(A, B), free("t")], asked).grants == (Grant("t", replica("a", 1)),)


def test_a_holder_of_a_fouled_slot_counts_as_asleep():
    asked = demand("a", "s", "t", waited_s=1)
    assert decided([fouled(A), free("t")], asked).grants == (Grant("t", replica("a", 1)),)


def test_a_first_replica_comes_before_anyones_second():
    again = demand("a", "s", "t", wanted=2, waited_s=999)
    slots = [held(A), free("t")]
    assert decided(slots, again, demand("b", "t", waited_s=0)).grants == (Grant("t", B),)
    assert decided(slots, again).grants == (Grant("t", replica("a", 1)),)


def test_nobody_loses_the_last_replica_for_anyones_second_but_the_second_for_anyones_first():
    greedy = demand("a", "s", "t", wanted=2, waited_s=999)
    assert not decided([held(A), held(B, name="t")], greedy, demand("b", "t")).yields
    slots = [held(A), held(replica("a", 1), name="t")]
    assert decided(slots, demand("a", "s", "t", wanted=2), demand("b", "t", waited_s=99)).yields == (
        Yield("t", replica("a", 1), B),
    )


def test_what_left_in_this_pass_counts_for_who_comes_next():
    """Of two spare replicas one may leave: after it the other is none."""
    slots = [held(A), held(replica("a", 1), name="t", for_s=1)]
    twice = demand("a", "s", "t", wanted=1)
    decision = decided(slots, twice, demand("b", "s", waited_s=9), demand("c", "t", waited_s=8))
    assert decision.yields == (Yield("s", A, B),)
    assert decision.due == later(TURN_S - 1)


def test_two_may_be_awake_on_a_slot_where_the_policy_says_so():
    two = replace(POLICY, awake_per_slot=2)
    asked = [demand("a"), demand("b", waited_s=0), demand("c", waited_s=99)]
    assert decided([held(A)], *asked[:2], policy=two).grants == (Grant("s", B),)
    assert decided([held(A, B)], *asked, policy=two).yields == (Yield("s", A, C),)


def test_a_waiter_is_named_once_it_has_waited_too_long_unless_it_has_something():
    busy = [held(A, for_s=1), held(C, name="t", for_s=1)]
    asked = [demand("a"), demand("c", "t", "s", wanted=2, waited_s=999)]
    assert decided(busy, *asked, demand("b", waited_s=119.9)).starving == ()
    assert decided(busy, *asked, demand("b", waited_s=120)).starving == (key("b"),)


def test_a_member_starves_also_while_all_its_replicas_back_off_or_have_no_pod():
    backs_off = [free(refusals=(refusal(B, times=9),))]
    assert decided(backs_off, demand("b", waited_s=120)).starving == (key("b"),)
    nowhere = replace(demand("b", waited_s=120), places=())
    assert decided([free()], nowhere) == Decision(starving=(key("b"),))


def test_it_is_looked_again_when_a_member_begins_to_starve():
    slots = [granting(C), free("t", refusals=(refusal(B, times=9),))]
    assert decided(slots[:1], demand("b", waited_s=110)) == Decision(due=later(10))
    assert decided(slots, demand("b", "t", waited_s=119)) == Decision(due=later(1)), "sooner than its backoff ends"
    awake = demand("a", "s", "t", wanted=2, waited_s=110)
    assert decided([held(A), granting(C, "t")], awake) == Decision(), "it has something"
    assert decided([free()], demand("b", waited_s=110)).due is None, "it is given what it waits for"


def test_since_when_it_waits_may_not_be_known_yet_or_lie_ahead():
    assert decided([held(A)], demand("a"), demand("b")).due == later(POLICY.patience_s)
    ahead = demand("b", waited_s=-60)
    assert decided([held(A)], demand("a"), ahead).due == later(POLICY.patience_s)


def test_residues_beyond_what_is_set_aside_send_the_least_valuable_sleepers_deeper():
    sleepers = tuple(Sleeper(replica=replica(name), level=1, residual_bytes=3 * GIB) for name in "abcd")
    asked = [demand(name, wanted=0, quiet_s=quiet_s) for name, quiet_s in zip("abcd", (1, 50, 99, 20), strict=True)]
    assert decided([free(sleepers=sleepers[:2])], *asked).deepenings == ()
    assert decided([free(sleepers=sleepers)], *asked).deepenings == (replica("c"), replica("b"))
    assert decided([held(C, sleepers=sleepers)], *asked).deepenings == (replica("b"),), "a holder is no sleeper"
    assert decided([yielding(replica("z"), C, sleepers=sleepers)], *asked).deepenings == (replica("b"),)


def test_a_replica_is_named_by_its_member_and_its_place():
    assert str(replica("a", 2)) == "team/a[2]"
