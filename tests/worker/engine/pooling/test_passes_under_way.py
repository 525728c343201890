"""A pass for vectors that is stopped: for a more urgent one, an abort, a failure, a command."""

import pytest

from tests.worker.engine.pooling.kit import House, lengths


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
