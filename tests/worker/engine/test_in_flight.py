"""Both that keep count of the batches in flight keep the contract of `InFlight`."""

import pytest

from dormouse_worker.engine.forward_pass import Limits
from dormouse_worker.engine.in_flight import make_in_flight
from dormouse_worker.engine.look_ahead import LookAhead
from dormouse_worker.engine.micro_batches import MicroBatches
from tests.worker.engine.test_micro_batches import chosen, make_batch, make_running


def make_limits(**depth):
    return Limits(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=16, **depth)


@pytest.mark.parametrize(
    ("depth", "kind"),
    [({}, MicroBatches), ({"max_batches_under_way": 2, "looks_ahead": True}, LookAhead)],
    ids=["one batch", "ahead"],
)
def test_a_request_is_in_flight_until_its_batch_arrives(depth, kind):
    batches, running = make_in_flight(make_limits(**depth)), make_running("ab")
    assert isinstance(batches, kind)
    assert (chosen(batches, running), batches.share(2)) == ("ab", 2)
    batches.depart(make_batch("ab"))
    assert ["a" in batches, "b" in batches, "c" in batches] == [True, True, False]
    batches.arrive(make_batch("ab"))
    assert ["a" in batches, "b" in batches] == [False, False]
    assert chosen(batches, running) == "ab"


def test_several_batches_in_flight_are_shared_out_unless_it_looks_ahead():
    assert make_in_flight(make_limits(max_batches_under_way=2)).share(4) == 2
