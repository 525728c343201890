"""Which requests go into the next batch while others are under way."""

import pytest

from dormouse_worker.engine.batch import Batch, ScheduledSequence
from dormouse_worker.engine.micro_batches import MicroBatches
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling


def make_running(names):
    return [Request(name, [1], make_sampling(), arrival_s=0.0) for name in names]


def make_batch(names):
    sequences = tuple(ScheduledSequence(name, 0, 1, ([0],), samples=True) for name in names)
    return Batch(False, (), (), (), (), sequences)


def chosen(batches, running):
    return "".join(request.request_id for request in batches.choose(running))


def test_one_stage_takes_all_that_run():
    assert chosen(MicroBatches(1), make_running("abcde")) == "abcde"


def test_each_of_two_batches_takes_a_half_and_nobody_is_in_both():
    batches, running = MicroBatches(2), make_running("abcde")
    batches.depart(make_batch("abc"))
    assert chosen(batches, running) == "de"
    batches.depart(make_batch("de"))
    assert chosen(batches, running) == ""
    batches.arrive(make_batch("abc"))
    assert chosen(batches, running) == "abc"


def test_halves_that_became_unequal_are_made_equal_again():
    batches, running = MicroBatches(2), make_running("abcdef")
    batches.depart(make_batch("f"))
    assert chosen(batches, running) == "abc"
    batches.depart(make_batch("abc"))
    batches.arrive(make_batch("f"))
    assert chosen(batches, running) == "def"


@pytest.mark.parametrize(("most", "count", "share"), [(1, 5, 5), (2, 5, 3), (3, 5, 2), (3, 1, 1), (2, 0, 0)])
def test_a_share_is_rounded_up(most, count, share):
    assert MicroBatches(most).share(count) == share


def test_every_batch_that_may_follow_gets_somebody():
    batches, running, sizes = MicroBatches(5), make_running("abcdef"), []
    for _ in range(5):
        names = chosen(batches, running)
        batches.depart(make_batch(names))
        sizes.append(len(names))
    assert sizes == [2, 1, 1, 1, 1]


def test_it_explains_itself():
    batches = MicroBatches(2)
    batches.depart(make_batch("ab"))
    assert "a" in batches
    assert repr(batches) == "MicroBatches(2 requests under way, 1/2 batches)"
