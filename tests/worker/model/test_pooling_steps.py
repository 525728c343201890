"""A pass in steps: where it stops, what it keeps, and how it ends."""

import pytest

from dormouse_worker.engine.pooling.batch import PoolingOutput
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.model.pooling_steps import PassInSteps


class Steps:
    """Three steps of a second each, which note what happens."""

    def __init__(self, error=None):
        self.seen = []
        self.clock = ManualClock()
        self._error = error

    def begin(self):
        return PassInSteps(self._run(), self.clock)

    def _run(self):
        try:
            for number in range(3):
                self.seen.append(number)
                self.clock.now_s += 1
                yield
            if self._error:
                raise self._error
            return PoolingOutput([b"done"])
        finally:
            self.seen.append("end")


def test_it_computes_at_least_a_step_and_as_many_as_there_is_time_for():
    steps = Steps()
    begun = steps.begin()
    assert (begun.advance(0), steps.seen) == (False, [0])
    assert (begun.advance(1.5), steps.seen) == (False, [0, 1, 2])
    assert repr(begun) == "PassInSteps(under way)"
    assert begun.finish() == begun.finish() == PoolingOutput([b"done"])
    assert (begun.advance(0), steps.seen) == (True, [0, 1, 2, "end"])
    assert repr(begun) == "PassInSteps(done)"


def test_what_a_step_raises_is_raised():
    with pytest.raises(ValueError, match="broken"):
        Steps(ValueError("broken")).begin().finish()


def test_who_is_left_gives_back_what_he_has():
    steps = Steps()
    begun = steps.begin()
    begun.advance(0)
    begun.leave()
    begun.leave()
    assert steps.seen == [0, "end"]
