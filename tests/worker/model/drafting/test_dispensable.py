"""What can be done without keeps nobody asleep, and is there again after the next wake that brings it."""

from __future__ import annotations

import pytest

from dormouse_worker.model.drafting.dispensable import Dispensable


class Part:
    """A part of the memory that fails in what it is told to."""

    tag = "weights"
    wake_bytes = 7
    is_arriving = True

    def __init__(self):
        self.is_asleep, self.calls, self.failing = True, [], set()

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            if name in self.failing:
                raise OSError("gone")
            self.is_asleep = {"restore": False, "drop": True}.get(name, self.is_asleep)
            return 7

        return call


@pytest.fixture
def part():
    return Part()


def test_all_that_is_asked_of_it_is_done(part):
    over = Dispensable(part)
    assert (over.tag, over.wake_bytes, over.is_arriving, over.is_asleep) == ("weights", 7, True, True)
    over.reserve()
    over.restore()
    over.arrive()
    over.settle()
    assert (over.is_asleep, over.lost) == (False, "")
    over.save(2)
    over.forget()
    over.cancel()
    assert over.drop() == 7
    names = ["reserve", "restore", "arrive", "settle", "save", "forget", "cancel", "drop"]
    assert [call[0] for call in part.calls] == names
    assert "lost" not in repr(over)


@pytest.mark.parametrize("step", ["restore", "arrive"])
def test_what_does_not_come_back_is_lost_until_the_next_wake(part, step, caplog):
    over = Dispensable(part)
    part.failing = {step}
    over.restore()
    over.arrive()
    assert over.lost == "OSError: gone"
    assert not over.is_asleep
    assert part.is_asleep, "it holds nothing"
    assert "no drafts until the next wake" in caplog.text
    assert repr(over).endswith(", lost)")
    over.drop()
    part.failing.clear()
    over.restore()
    over.arrive()
    assert (over.lost, over.is_asleep) == ("", False)


def test_memory_that_lacks_is_told_as_ever(part):
    part.failing = {"reserve"}
    with pytest.raises(OSError, match="gone"):
        Dispensable(part).reserve()
