"""Calls for vectors: who computes next, how much of a call fits a pass, and what becomes of one that fails."""

import math

import pytest

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddPooling, PoolingParams
from dormouse_worker.engine.assembly import build_stepper
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingOutput
from dormouse_worker.engine.pooling.engine import NOT_FINITE, PoolingEngine, PoolingLimits
from dormouse_worker.engine.pooling.pace import Pace
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor


class Passes:
    """Implements `PoolingExecutor`: a vector is its text."""

    def __init__(self, clock, token_s):
        self.clock, self.token_s = clock, token_s
        self.batches = []
        self.left = []
        self.error = None
        self.odd = ()

    def begin_pooling(self, batch):
        self.batches.append([sequence.token_ids for sequence in batch.sequences])
        return TokenByToken(self, batch)

    def verify(self):
        if self.error:
            raise self.error


class TokenByToken:
    """Implements `PassUnderWay`: it can stop behind each token."""

    def __init__(self, passes, batch):
        self._passes = passes
        self._texts = [sequence.token_ids for sequence in batch.sequences]
        self._num_left = sum(map(len, self._texts))

    def advance(self, seconds):
        clock = self._passes.clock
        deadline_s = clock.now_s + seconds
        while self._num_left:
            self._num_left -= 1
            clock.now_s += self._passes.token_s
            if self._passes.error:
                raise self._passes.error
            if clock.now_s >= deadline_s:
                break
        return not self._num_left

    def finish(self):
        assert self.advance(math.inf)
        return PoolingOutput([bytes(text) for text in self._texts], self._passes.odd)

    def leave(self):
        self._passes.left.append(self._texts)


class House:
    """An engine, the passes that it has computed, and time."""

    def __init__(self, token_s=0.0, **limits):
        self.clock = ManualClock()
        self.passes = Passes(self.clock, token_s)
        known = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 6}
        self.engine = PoolingEngine(self.passes, PoolingLimits(**{**known, **limits}), self.clock)

    def add(self, name, *texts, priority=0):
        return self.engine.add(AddPooling(name, [list(text) for text in texts], PoolingParams(), priority))

    def run(self):
        told = []
        while self.engine.has_work:
            told += [(output.request_id, output.vectors) for output in self.end_pass().pooled]
            self.engine.check_integrity()
        return told

    def end_pass(self):
        """Step until a pass has ended; return what is told."""
        while (outputs := self.engine.step()) is None:
            self.engine.check_integrity()
        return outputs


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


def lengths(house):
    return [len(batch) for batch in house.passes.batches]


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


def under_way(house, *calls):
    """Add calls of low priority, and compute a token of their pass: a step of 4 ms."""
    for name, text in calls:
        house.add(name, text, priority=5)
    assert house.engine.step() is None
    return house


def test_a_more_urgent_call_is_computed_in_the_midst_of_a_pass_which_goes_on_then():
    house = under_way(House(token_s=0.004), ("bulk", [1] * 6))
    house.add("short", [2])
    house.add("equal", [3], priority=5)
    assert [name for name, _ in house.run()] == ["short", "bulk", "equal"]
    assert house.passes.batches == [[[1] * 6], [[2]], [[3]]]
    assert house.clock.now_s == pytest.approx(8 * 0.004)


def test_a_third_pass_waits_for_the_second():
    house = under_way(House(token_s=0.004), ("bulk", [1] * 6))
    house.add("short", [2] * 3)
    assert house.engine.step() is None
    house.add("shorter", [3], priority=-1)
    assert [name for name, _ in house.run()] == ["short", "shorter", "bulk"]


def test_a_pass_above_another_has_as_many_tokens_as_a_text_may_have():
    house = under_way(House(token_s=0.001), ("bulk", [1] * 6), ("more", [1] * 2))
    house.add("short", *[[2] * 2] * 4)
    house.run()
    assert lengths(house) == [2, 3, 1]


def test_what_a_token_takes_is_without_the_passes_above():
    """A pass of 5 tokens, of which each takes 4 ms, stops for one of as many."""
    house = under_way(House(token_s=0.004), ("bulk", [1] * 5))
    house.add("short", [2] * 5)
    house.run()
    assert repr(house.engine._pace) == "Pace(4000.0 µs a token)"


def test_a_call_aborted_in_its_pass_is_told_nothing_more():
    house = under_way(House(token_s=0.004), ("a", [1]), ("b", [2]))
    house.engine.abort(["a"])
    house.add("a", [3], priority=5)
    assert house.run() == [("b", [bytes([2])]), ("a", [bytes([3])])]


def test_a_pass_that_nobody_waits_for_any_more_is_left():
    house = under_way(House(token_s=0.004), ("a", [1]), ("b", [2]))
    house.engine.abort(["a"])
    assert not house.passes.left
    house.engine.abort(["b"])
    assert house.passes.left == [[[1], [2]]]
    assert not house.engine.has_work
    house.engine.check_integrity()
    under_way(house, ("c", [3, 3]))
    house.engine.give_up("no more")
    assert house.passes.left[1:] == [[[3, 3]]]
    assert house.engine.step() is None


def test_a_call_that_waits_in_line_is_aborted_beside_a_pass():
    house = under_way(House(token_s=0.004), ("a", [1] * 6))
    house.add("b", [2])
    house.engine.abort(["b"])
    assert [name for name, _ in house.run()] == ["a"]


def test_a_pass_that_fails_above_another_costs_that_one_nothing():
    house = under_way(House(token_s=0.004), ("bulk", [1] * 6))
    house.add("short", [2])
    house.passes.error = RuntimeError("broken")
    assert house.end_pass().failed == {"short": "the forward pass failed: RuntimeError: broken"}
    house.engine.check_integrity()
    house.passes.error = None
    assert house.run() == [("bulk", [bytes([1] * 6)])]


def test_who_was_aborted_in_a_pass_that_fails_is_told_nothing():
    house = under_way(House(token_s=0.004), ("a", [1]), ("b", [2]))
    house.engine.abort(["a"])
    house.passes.error = RuntimeError("broken")
    assert list(house.end_pass().failed) == ["b"]


def test_before_a_command_the_passes_under_way_are_computed_and_told():
    house = under_way(House(token_s=0.004), ("bulk", [1] * 6))
    house.add("short", [2] * 3)
    assert house.engine.step() is None
    house.add("later", [3])
    assert [output.request_id for told in house.engine.settle() for output in told.pooled] == ["short", "bulk"]
    assert house.engine.has_work


def test_a_pass_under_way_for_nobody_is_found():
    house = under_way(House(token_s=0.004), ("a", [1, 1]))
    del house.engine._calls["a"]
    with pytest.raises(RuntimeError, match="for nobody"):
        house.engine.check_integrity()


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
