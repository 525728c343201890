"""Tokens that a grammar forces: several at once, computed in one go, and the very same as one by one."""

from __future__ import annotations

import pytest

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.engine.testing import make_add
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.engine.testing_stages import AheadFakeExecutor, StagedFakeExecutor
from tests.worker.engine.engine_kit import StagedEngine, expected

BOUND = Grammar("start: whatever the model says", ())


def forcing(executor_class=FakeExecutor, most=4, **settings):
    engine = StagedEngine(executor_class, **settings)
    engine.executor.most_forced = most
    return engine


def num_tokens_of(engine, name):
    """Return how many tokens of a sequence each batch had."""
    return [s.num_tokens for batch in engine.executor.batches for s in batch.sequences if s.request_id == name]


@pytest.mark.parametrize(
    ("executor", "stages"),
    [(FakeExecutor, 1), (StagedFakeExecutor, 1), (StagedFakeExecutor, 2), (AheadFakeExecutor, 1)],
)
def test_forced_tokens_take_no_pass_of_their_own_and_change_nothing(executor, stages):
    engine = forcing(executor, pipeline_parallel_size=stages)
    engine.add("a", "b", max_tokens=20, grammar=BOUND)
    engine.add("c", max_tokens=20)
    said = engine.run()
    assert said == {"a": expected(range(3), 20), "b": expected(range(1, 4), 20), "c": expected(range(3), 20)}
    assert len(num_tokens_of(engine, "a")) < 12 < len(num_tokens_of(engine, "c")) == 20


def test_one_message_brings_a_sampled_token_and_all_behind_it():
    engine = forcing()
    engine.add("a", max_tokens=20, grammar=BOUND)
    first = engine.step().outputs[0]
    count = 1 + first.token_ids[0] % 5
    assert first.token_ids == expected(range(3), count)
    assert count > 1
    engine.step()
    assert num_tokens_of(engine, "a")[1] == count


def test_a_stop_token_among_the_forced_ones_is_the_last_that_is_told():
    said = expected(range(3), 20)
    engine = forcing(most=50)
    engine.add("a", max_tokens=20, grammar=BOUND, stop_token_ids=(said[2],))
    (output,) = engine.step().outputs
    assert (output.token_ids, output.finish_reason) == (said[:3], "stop")
    assert not engine.engine.has_work
    engine.engine.check_integrity()


def test_so_is_the_end_of_the_grammar_and_the_last_of_max_tokens():
    said = expected(range(3), 20)
    engine = forcing(most=50)
    engine.add("a", max_tokens=20, min_tokens=20, grammar=Grammar("start: any", (said[1],)))
    (output,) = engine.step().outputs
    assert (output.token_ids, output.finish_reason) == (said[:2], "stop")
    engine.add("b", max_tokens=3, grammar=BOUND)
    (output,) = engine.step().outputs
    assert (output.token_ids, output.finish_reason) == (said[:3], "length")


def test_more_forced_tokens_than_a_pass_takes_are_computed_in_chunks():
    engine = forcing(most=50, max_num_batched_tokens=6)
    engine.add("a", length=1, max_tokens=25, grammar=BOUND)
    assert engine.run() == {"a": expected(range(1), 25)}
    assert num_tokens_of(engine, "a")[:4] == [1, 6, 6, 3]
    assert [s.samples for batch in engine.executor.batches for s in batch.sequences][:4] == [True, False, False, True]


@pytest.mark.parametrize("asking", [{"grammar": BOUND}, {"logprobs": 1}, {"presence_penalty": 0.5}], ids=str)
def test_who_asks_the_host_is_in_every_second_batch_and_others_run_ahead(asking):
    engine = forcing(AheadFakeExecutor)
    engine.add("a", max_tokens=9, **asking)
    engine.add("b", "c", "d", max_tokens=9)
    seen = []
    for _ in range(3):
        engine.engine._hand_over()
        seen.append(engine.under_way())
        engine.step()
    assert seen == [["abcd", "bcd"], ["bcd", "abcd"], ["abcd", "bcd"]]
    assert engine.run()["b"] == expected(range(3), 9)


def test_where_many_ask_the_host_all_wait_for_it():
    engine = forcing(AheadFakeExecutor)
    engine.add("a", "b", max_tokens=9, grammar=BOUND)
    engine.add("c", "d", "e", max_tokens=9)
    engine.engine._hand_over()
    assert engine.under_way() == ["abcde"]
    assert engine.run()["d"] == expected(range(1, 4), 9)


@pytest.mark.parametrize("host_blocks", [0, 8])
@pytest.mark.parametrize("executor", [FakeExecutor, StagedFakeExecutor, AheadFakeExecutor])
def test_in_a_cache_that_is_too_small_they_are_the_same(executor, host_blocks):
    engine = forcing(executor, num_blocks=9, host_blocks=host_blocks)
    engine.add(*"abcdef", length=10, max_tokens=12, grammar=BOUND)
    assert engine.run() == {name: expected(range(n, n + 10), 12) for n, name in enumerate("abcdef")}
    assert engine.scheduler.counters.preemptions > 0


def test_blocks_that_forced_tokens_fill_are_known_to_who_comes_later():
    engine = forcing()
    engine.add("a", max_tokens=11, grammar=BOUND)
    said = [*range(3), *engine.run()["a"]]
    engine.executor.batches.clear()
    assert engine.engine.add(make_add("again", said, max_tokens=1)) is None
    assert engine.run()["again"] == expected(said, 1)
    assert engine.executor.batches[0].sequences[0].start == 8, "all full blocks that were computed"
