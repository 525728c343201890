"""The simulator of pools counts every call once, and its arbiters do what their names say."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from bench.pools_picture import Stretch, Window, draw
from bench.pools_rivals import LeastRecentlyUsed, Ours, Static
from bench.pools_trace import Call, Model, Trace, busy_pair, make_trace
from bench.pools_world import PREFILL_S, World
from dormouse_operator.model.pools import PoolPolicy

POLICY = PoolPolicy(min_active_s=20.0, patience_s=2.0, drain_s=5.0)


def trace(*calls, num_models=2):
    """Return calls, each (second, model, seconds of work), to models that share one slot and wake in 1 s."""
    models = tuple(Model((0,), wake_s=1.0, sleep_s=0.5) for _ in range(num_models))
    return Trace(models, tuple(Call(*call) for call in calls), num_slots=1, seconds=100.0)


def waits(outcome):
    return [round(wait_s - PREFILL_S, 6) for wait_s in outcome.waits_s]


def test_the_first_call_waits_for_the_wake_and_the_second_for_nothing():
    assert waits(World(trace((0.0, 0, 3.0), (2.0, 0, 3.0)), Ours(POLICY)).run()) == [1.0, 0.0]


def test_an_idle_holder_leaves_at_once_and_a_busy_one_when_its_calls_have_ended_at_the_latest():
    outcome = World(trace((0.0, 0, 3.0), (10.0, 1, 3.0), (12.0, 0, 1.0)), Ours(POLICY)).run()
    assert waits(outcome) == [1.0, 1.5, 4.0], "1 s of it woke at 11.5 and worked till 14.5"
    assert (outcome.switches, outcome.lost, outcome.parked) == (2, 0, 0)
    assert outcome.switching_s == 1.0 + 1.5 + 1.5
    assert outcome.stretches == [Stretch("0", 0, 1.0, 10.0), Stretch("0", 1, 11.5, 14.5), Stretch("0", 0, 16.0, 100.0)]
    assert (outcome.held_s(0), outcome.held_s(1)) == (93.0, 3.0)


def test_a_stream_that_does_not_end_is_parked_and_goes_on_where_it_was():
    outcome = World(trace((0.0, 0, 50.0), (5.0, 1, 1.0)), Ours(POLICY)).run()
    assert waits(outcome) == [1.0, 21 + 5 + 1.5 - 5.0], "its turn, its drain, the switch"
    assert outcome.parked == 1
    assert outcome.longest_pause_s == pytest.approx(1.5 + 1.0 + 1.5)


def test_least_recently_used_lets_calls_end_and_takes_nothing_new_meanwhile():
    outcome = World(trace((0.0, 0, 50.0), (5.0, 1, 1.0), (6.0, 0, 1.0)), LeastRecentlyUsed()).run()
    assert waits(outcome) == [1.0, 51.0 + 1.5 - 5.0, 51.0 + 1.5 + 1.0 + 1.5 - 6.0]
    assert outcome.parked == 0


def test_a_static_partition_serves_the_most_popular_and_loses_the_others():
    outcome = World(trace((0.0, 0, 1.0), (5.0, 1, 1.0), (60.0, 0, 1.0)), Static()).run()
    assert (waits(outcome), outcome.lost, outcome.switches) == ([1.0, 0.0], 1, 0)
    assert outcome.wait_s(100) == 300.0
    assert outcome.goodput == 60.0 * 2 / 100.0


@pytest.mark.parametrize("arbiter", [Ours(), LeastRecentlyUsed(), Static()], ids=lambda found: type(found).__name__)
def test_every_call_is_served_or_lost_and_the_same_again(arbiter):
    small = make_trace(num_models=6, num_slots=2, calls_per_s=0.05)
    first, again = (World(small, arbiter).run() for _ in range(2))
    assert len(first.waits_s) + first.lost == first.num_calls == len(small.calls) > 0
    assert first == again


def test_traces_are_zipf_s_and_their_models_spread_over_the_slots():
    found = make_trace(calls_per_s=1.0)
    called = Counter(call.model for call in found.calls)
    assert called[0] > called[4] > called[39] > 0
    assert [call.at_s for call in found.calls] == sorted(call.at_s for call in found.calls)
    assert Counter(slot for model in found.models for slot in model.slots) == dict.fromkeys(range(4), 20)
    assert {len(model.slots) for model in found.models} == {2}


def test_the_pair_calls_one_slot_all_the_time():
    found = busy_pair()
    assert found.num_slots == 1
    assert max(later.at_s - call.at_s for call, later in zip(found.calls, found.calls[1:], strict=False)) < 20


def test_the_picture_has_a_box_for_each_stretch_in_the_window_and_cuts_it_at_the_edges():
    stretches = [
        Stretch("0", 0, 0.0, 90.0),
        Stretch("0", 1, 100.0, 110.0),
        Stretch("1", 30, 150.0, 900.0),
        Stretch("0", 2, 200.0, 210.0),
    ]
    drawn = draw("title", {"ours": stretches, "LRU": stretches[:1]}, 2, Window(80.0, 200.0))
    boxes = re.findall(r'<rect x="([0-9.]+)" y="(\d+)" width="([0-9.]+)" height="18" fill="(#\w+)"', drawn)
    assert [(float(x), float(width)) for x, _, width, _ in boxes] == [
        (70.0, 66.7),
        (203.3, 66.7),
        (536.7, 333.3),
        (70.0, 66.7),
    ]
    assert [color for *_, color in boxes] == ["#0072b2", "#e69f00", "#bbbbbb", "#0072b2"]
    first, second, below, other_panel = (int(y) for _, y, *_ in boxes)
    assert first == second < below < other_panel
    assert "title" in drawn
    assert drawn.count("1.33333 min") == 2
