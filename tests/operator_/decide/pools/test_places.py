"""Each replica gets a slot for life: apart from its fellows, evenly, within the limit, whoever comes and goes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.pools.places import choose_slot, no_place
from dormouse_operator.model.pool_device import PoolDevice
from dormouse_operator.model.pools import Pool, PoolPolicy
from tests.operator_.decide.pools.nouns import key, replica

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pool(num_slots=2, most=8):
    policy = PoolPolicy(max_members_per_slot=most)
    return Pool(key=key("p"), uid="u", generation=1, device=PoolDevice("gpu"), num_slots=num_slots, policy=policy)


def place(shared, placed, *replicas):
    """Give each of them its slot in turn, as pods are made."""
    for each in replicas:
        slot = choose_slot(shared, each, placed)
        if slot is not None:
            placed[each] = slot
    return placed


def test_slots_are_filled_evenly():
    placed = place(pool(3), {}, *(replica(name) for name in "abcdef"))
    assert Counter(placed.values()) == {"p-0": 2, "p-1": 2, "p-2": 2}


def test_replicas_of_a_member_are_on_slots_of_their_own():
    shared = pool(2)
    placed = place(shared, {}, replica("a", 0), replica("a", 1))
    assert placed == {replica("a", 0): "p-0", replica("a", 1): "p-1"}
    assert choose_slot(shared, replica("a", 2), placed) is None
    assert no_place(shared, replica("a", 2), placed) == (
        "replica 2 has no place in GpuPool p: of its 2 slots 2 have another replica of this member; "
        "raise spec.slots of the pool, or lower spec.replicas"
    )


def test_no_slot_has_more_than_the_pool_allows_and_who_finds_none_is_told_the_numbers():
    shared = pool(2, most=1)
    placed = place(shared, {}, replica("a", 0), replica("b"))
    assert choose_slot(shared, replica("c"), placed) is None
    assert no_place(shared, replica("c"), placed) == (
        "replica 0 has no place in GpuPool p: of its 2 slots 2 have spec.maxMembersPerSlot, 1, replicas; "
        "raise spec.slots or spec.maxMembersPerSlot of the pool, or lower spec.replicas"
    )
    told = no_place(shared, replica("a", 1), placed)
    assert "1 have spec.maxMembersPerSlot, 1, replicas and 1 have another replica of this member" in told


def test_whose_pod_is_still_there_comes_back_to_its_slot_however_full_it_is():
    placed = {replica("a"): "p-1", replica("b"): "p-1"}
    assert choose_slot(pool(2, most=1), replica("a"), placed) == "p-1"


def test_whose_slot_is_no_longer_wanted_gets_another():
    assert choose_slot(pool(1), replica("a"), {replica("a"): "p-1"}) == "p-0"


comings = st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefgh"), st.integers(0, 4)), max_size=60)


@given(num_slots=st.integers(1, 4), most=st.integers(1, 4), history=comings)
def test_through_any_history_limits_hold_nobody_moves_and_a_place_is_found_where_there_is_one(num_slots, most, history):
    shared, placed = pool(num_slots, most), {}
    for comes, name, index in history:
        each, before = replica(name, index), dict(placed)
        if not comes:
            placed.pop(each, None)
            continue
        place(shared, placed, each)
        counts = Counter(placed.values())
        assert all(placed[other] == slot for other, slot in before.items()), "nobody moves"
        assert max(counts.values(), default=0) <= most
        on_slots = [(other.key, slot) for other, slot in placed.items()]
        assert len(on_slots) == len(set(on_slots)), "two replicas of one member on a slot"
        if each not in placed:
            own = {slot for other, slot in placed.items() if other.key == each.key}
            assert all(counts[slot] == most for slot in shared.slot_names if slot not in own)
            assert "0 slots" not in no_place(shared, each, placed)
        elif each not in before:
            others = Counter(slot for other, slot in before.items())
            free = [
                slot for slot in shared.slot_names if (each.key, slot) not in {(o.key, s) for o, s in before.items()}
            ]
            assert others[placed[each]] == min(others[slot] for slot in free), "the emptiest is taken"
