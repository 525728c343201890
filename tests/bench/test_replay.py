"""Replays run the operator as it is, in virtual time: they count every call once, and find what the simulator finds."""

from __future__ import annotations

import asyncio

import pytest

from bench.pools_replay import COLD_S, cold, first_seconds
from bench.pools_rivals import Ours
from bench.pools_trace import Call, Model, Trace, make_trace
from bench.pools_world import PREFILL_S, World
from bench.replay import virtual_loop
from bench.replay.town import replay


def trace(*calls, num_models=2, seconds=60.0):
    models = tuple(Model((0,), wake_s=1.0, sleep_s=0.5) for _ in range(num_models))
    return Trace(models, tuple(Call(*call) for call in calls), num_slots=1, seconds=seconds)


def waits(outcome):
    return [round(wait_s - PREFILL_S, 6) for wait_s in outcome.waits_s]


def test_hours_pass_in_no_time():
    async def sleep():
        await asyncio.sleep(7200.0)
        return asyncio.get_running_loop().time()

    assert virtual_loop.run(sleep()) == 7200.0


def test_where_nothing_is_due_a_replay_ends_instead_of_hanging():
    with pytest.raises(RuntimeError, match="nothing is due"):
        virtual_loop.run(asyncio.Event().wait())


def test_a_call_waits_for_the_wake_the_next_for_nothing_and_another_models_for_the_switch():
    found = replay(trace((0.0, 0, 3.0), (2.0, 0, 3.0), (20.0, 1, 3.0)))
    assert waits(found.outcome) == [1.0, 0.0, 1.5]
    assert (found.outcome.lost, found.outcome.parked, found.outcome.switches) == (0, 0, 1)
    assert found.outcome.switching_s == 1.5, "before the first wake nobody left"
    assert found.most_awake == 1


def test_a_stream_that_does_not_end_is_parked_after_its_turn_and_goes_on():
    found = replay(trace((0.0, 0, 50.0), (5.0, 1, 1.0)))
    assert found.outcome.parked == 1
    assert len(found.outcome.waits_s) == 2
    assert found.outcome.waits_s[1] == pytest.approx(21 + 5 + 1.5 - 5.0 + PREFILL_S, abs=1.0)
    assert found.outcome.held_s(0) > found.outcome.held_s(1)


def test_the_operator_finds_what_the_simulator_finds_and_models_stand_where_it_placed_them():
    found = replay(first_seconds(make_trace(num_models=6, num_slots=2), 60.0))
    assert [len(model.slots) for model in found.trace.models] == [2] * 6
    bound = World(found.trace, Ours()).run()
    assert found.outcome.lost == bound.lost == 0
    assert len(found.outcome.waits_s) == len(bound.waits_s)
    assert found.outcome.wait_s(50) == pytest.approx(bound.wait_s(50), abs=1.0)


def test_a_model_that_starts_from_no_pod_reads_its_weights_from_a_disk():
    slow = cold(make_trace(num_models=1))
    assert slow.models[0].wake_s > COLD_S + 2.0
