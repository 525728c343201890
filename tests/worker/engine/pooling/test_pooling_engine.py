"""Calls for vectors: who computes next, how much of a call fits a pass, and what becomes of one that fails."""

import pytest

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddPooling, PoolingParams
from dormouse_worker.engine.assembly import build_stepper
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.engine.pooling.engine import NOT_FINITE, PoolingEngine
from dormouse_worker.engine.pooling.pace import Pace
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor
from tests.worker.engine.pooling.kit import House, Passes, lengths


def test_a_call_gets_a_vector_for_each_text_in_order_however_many_passes_it_takes():
    house = House()
    texts = [[number] * length for number, length in enumerate((5, 6, 1, 1, 1, 3), start=1)]
    assert house.add("a", *texts) is None
    assert house.run() == [("a", [bytes(text) for text in texts])]
    assert house.passes.batches == [[texts[0]], [*texts[1:4]], [*texts[4:]]]


def test_a_pass_holds_texts_of_several_calls_and_no_more_than_its_limits():
    house = House()
    for name in "abcde":
        house.add(name, [1], [2])
    assert [name for name, _ in house.run()] == list("abcde")
    assert [len(batch) for batch in house.passes.batches] == [4, 4, 2]


def test_a_call_of_higher_priority_goes_first_also_before_the_rest_of_one_that_began():
    house = House(max_num_seqs=1)
    house.add("bulk", *[[1]] * 3, priority=5)
    house.end_pass()
    house.add("short", [2])
    assert [name for name, _ in house.run()] == ["short", "bulk"]
    assert house.passes.batches == [[[1]], [[2]], [[1]], [[1]]]


def test_passes_are_short_beside_calls_of_higher_priority_which_share_none():
    """A text of one token takes 4 ms here: two go into 10 ms."""
    house = House(token_s=0.004)
    house.add("bulk", *[[1]] * 14, priority=5)
    house.end_pass()
    house.add("short", [2])
    house.run()
    assert house.passes.batches[1] == [[2]]
    assert lengths(house) == [4, 1, 2, 2, 2, 2, 2]


def test_passes_are_whole_again_once_nothing_urgent_came_for_a_while():
    house = House(token_s=0.004)
    house.add("bulk", *[[1]] * 12, priority=5)
    house.end_pass()
    house.add("short", [2])
    house.end_pass()
    house.end_pass()
    house.clock.now_s += 10
    house.run()
    assert lengths(house) == [4, 1, 2, 4, 2]


def test_a_text_that_takes_longer_than_a_short_pass_is_a_pass_of_its_own():
    house = House(token_s=0.02)
    house.add("bulk", *[[1, 1]] * 6, priority=5)
    house.end_pass()
    house.add("short", [2])
    house.add("equal", [3])
    house.run()
    assert house.passes.batches[1:] == [[[2]], [[3]], [[1, 1]], [[1, 1]]]


def test_what_a_token_takes_follows_the_passes_slowly():
    """It took 4 ms and now takes 2: the estimate reaches 3 ms after three passes, of which three go into 10 ms."""
    house = House(token_s=0.004)
    house.add("bulk", *[[1]] * 14, priority=5)
    house.end_pass()
    house.add("short", [2])
    house.passes.token_s = 0.002
    house.run()
    assert lengths(house) == [4, 1, 2, 3, 3, 2]


def test_equal_priorities_go_in_order_of_arrival():
    house = House(max_num_seqs=1)
    for name in "cab":
        house.add(name, [1])
    assert [name for name, _ in house.run()] == list("cab")


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ((), "a text is empty; at least 1 token is needed"),
        (([1], []), "a text is empty; at least 1 token is needed"),
        (([1] * 7,), "a text has 7 tokens; the limit is 6"),
    ],
)
def test_what_the_front_should_have_refused_is_not_taken(texts, why):
    house = House()
    assert house.add("a", *texts) == why
    assert not house.engine.has_work


def test_pairs_have_a_place_for_each_text():
    message = AddPooling("a", [[1], [2]], second_starts=[1])
    assert House().engine.add(message) == "second_starts has 1 places for 2 texts"


def test_who_asks_for_tokens_is_told_that_there_are_none():
    assert House().engine.add(make_add()) == "the model makes vectors, and no text"


def test_a_pass_that_fails_ends_the_calls_in_it_and_no_others():
    house = House()
    house.add("long", [1] * 6, [1] * 6)
    house.add("other", [2])
    house.passes.error = RuntimeError("broken")
    outputs = house.end_pass()
    assert outputs.failed == {"long": "the forward pass failed: RuntimeError: broken"}
    assert house.engine.num_failures_in_a_row == 1
    house.passes.error = None
    assert house.run() == [("other", [bytes([2])])]
    assert house.engine.num_failures_in_a_row == 0


def test_vectors_that_are_not_finite_end_their_call_alone():
    house = House()
    house.add("good", [1])
    house.add("odd", [2], [3])
    house.passes.odd = (2,)
    outputs = house.end_pass()
    assert outputs.failed == {"odd": NOT_FINITE}
    assert [output.request_id for output in outputs.pooled] == ["good"]
    assert (outputs.not_finite, house.engine.num_odd_in_a_row) == (1, 0)
    house.passes.odd = (0,)
    house.add("odd", [4])
    house.end_pass()
    assert house.engine.num_odd_in_a_row == 1


def test_an_aborted_call_is_forgotten_and_told_once():
    house = House(max_num_seqs=1)
    house.add("a", [1], [2])
    house.end_pass()
    assert [(output.request_id, output.finish_reason) for output in house.engine.abort(["a", "b"])] == [("a", "abort")]
    assert house.engine.abort_all() == []
    assert house.engine.step() is None


def test_load_and_times_are_told():
    house = House(max_num_seqs=1)
    house.add("a", [1], [2])
    house.add("b", [1])
    house.clock.now_s = 2.0
    outputs = house.end_pass()
    assert (outputs.running, outputs.waiting, outputs.pooled) == (1, 1, [])
    house.clock.now_s = 5.0
    (told,) = house.end_pass().pooled
    assert (told.queue_seconds, told.prefill_seconds) == (2.0, 3.0)
    assert house.engine.give_up("no more").failed == {"b": "no more"}


def test_between_passes_nothing_is_kept():
    house = House(max_num_seqs=1)
    house.add("a", [1], [2])
    house.end_pass()
    engine = house.engine
    engine.forget_ranks()
    engine.forget_prefixes()
    assert (engine.cached_blocks, list(engine.settle()), engine.is_leaving("a")) == ((), [], False)
    assert (engine.num_requests, repr(engine)) == (1, "PoolingEngine(1 calls)")
    assert PooledSequence([1, 2, 3], PoolingParams()).num_tokens == 3


def test_the_golden_vectors_are_asked_for_and_what_is_wrong_is_told():
    house = House()
    house.engine.num_odd_in_a_row = 1
    assert house.engine.verify(house.passes) == ""
    assert house.engine.num_odd_in_a_row == 0
    house.passes.error = ValueError("other vectors")
    assert house.engine.verify(house.passes) == "ValueError: other vectors"


def test_a_broken_group_is_nobody_s_failed_pass():
    house = House()
    house.add("a", [1])
    house.passes.error = GroupBroken("a rank is gone")
    with pytest.raises(GroupBroken):
        house.engine.step()
    with pytest.raises(GroupBroken):
        house.engine.verify(house.passes)
    assert house.engine.has_work


def test_a_complete_call_that_nobody_was_told_of_is_found():
    house = House()
    house.add("a", [1])
    house.engine._calls["a"].vectors.append(b"")
    with pytest.raises(RuntimeError, match="a"):
        house.engine.check_integrity()


def test_who_reports_no_blocks_makes_vectors_and_who_reports_some_text():
    settings, clock = EngineSettings(model="m"), ManualClock()
    assert isinstance(build_stepper(settings, make_report(block_bytes=0), (0, 0), _Both(), clock=clock), PoolingEngine)
    text = build_stepper(settings, make_report(), (64, 0), FakeExecutor(), clock=clock)
    assert isinstance(text, Engine)
    assert text.add(AddPooling("a", [[1]], PoolingParams())) == "the model makes text, and no vectors"


class _Both(FakeExecutor):
    """Executes texts as well."""

    begin_pooling = Passes.begin_pooling


def test_a_pace_says_what_it_knows():
    assert repr(Pace()) == "Pace(0.0 µs a token)"
