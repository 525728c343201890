"""The stopwatch: phases add up, also where they fail."""

import pytest

from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.model.stopwatch import Stopwatch


def test_a_phase_that_comes_twice_adds_up_and_one_that_raises_counts():
    clock = ManualClock()
    watch = Stopwatch(clock)
    with watch.phase("save"):
        clock.now_s += 2

    def fail():
        with watch.phase("drop"):
            clock.now_s += 1
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        fail()
    with watch.phase("save"):
        clock.now_s += 3
    assert watch.phases == {"save": 5, "drop": 1}
    assert repr(watch) == "Stopwatch(save 5.000 s, drop 1.000 s)"
