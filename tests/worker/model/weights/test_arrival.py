"""Who waits for bytes gets them as soon as they are there, and the error if they never come."""

import threading

import pytest

from dormouse_worker.model.weights.arrival import Arrival

PATIENCE_S = 90  # only a test that fails waits so long


class Steps:
    """A filling that brings ten bytes whenever the test says so."""

    def __init__(self, num_steps=3, error=None):
        self.may_go = threading.Semaphore(0)
        self.num_steps, self.error = num_steps, error
        self.num_done = 0

    def fill(self, tell):
        for step in range(self.num_steps):
            assert self.may_go.acquire(timeout=PATIENCE_S)
            tell(10 * (step + 1))
            self.num_done += 1
        if self.error is not None:
            raise self.error


def begin(steps):
    arrival = Arrival(steps.fill)
    arrival.start()
    return arrival


def test_bytes_are_there_before_the_last_ones():
    steps = Steps()
    arrival = begin(steps)
    arrival.wait_for(0)
    steps.may_go.release()
    arrival.wait_for(10)
    assert steps.num_done <= 1
    assert repr(arrival) == "Arrival(10 bytes, under way)"
    steps.may_go.release(2)
    arrival.wait_for(21)
    arrival.finish()
    assert repr(arrival) == "Arrival(30 bytes, over)"


def test_an_error_comes_out_of_every_wait():
    steps = Steps(num_steps=1, error=OSError("gone"))
    arrival = begin(steps)
    steps.may_go.release()
    for wait in (lambda: arrival.wait_for(11), arrival.finish, lambda: arrival.wait_for(1)):
        with pytest.raises(OSError, match="gone"):
            wait()
    assert "failed" in repr(arrival)


def test_what_nobody_wants_any_more_ends_at_its_next_step():
    steps = Steps(num_steps=1000)
    arrival = begin(steps)
    steps.may_go.release()
    arrival.wait_for(10)
    steps.may_go.release(999)
    arrival.stop()
    with pytest.raises(Exception, match=r"^$"):
        arrival.wait_for(10_000)
