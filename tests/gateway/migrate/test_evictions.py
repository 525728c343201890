"""Who is told to leave a worker that must go, and when: in the test's own time."""

from dataclasses import dataclass, field

import pytest

from dormouse_gateway.migrate.evictions import _AT_ONCE, Evictions, StreamLease
from dormouse_gateway.testing.workers import endpoint

HERE = endpoint("w0")


@dataclass
class Later:
    """What is to be done, and when; does it when told."""

    due: list = field(default_factory=list)

    def __call__(self, delay_s, do):
        entry = _Entry(self, delay_s, do)
        self.due.append(entry)
        return entry

    def pass_time(self):
        """Do what is next."""
        entry = self.due.pop(0)
        entry.do()
        return entry.delay_s


@dataclass
class _Entry:
    later: Later
    delay_s: float
    do: object

    def cancel(self):
        self.later.due.remove(self)


@pytest.fixture
def later():
    return Later()


@pytest.fixture
def make(later):
    def made(*, has_peer=lambda _: True):
        return Evictions(has_peer, after_s=10.0, call_later=later)

    return made


def stream(told, name="a", *, may_leave=True):
    return StreamLease(lambda: may_leave, lambda: told.append(name))


def test_a_stream_may_finish_first_and_is_then_told_once(make, later):
    evictions, told = make(), []
    with evictions.stay(HERE, stream(told)) as stay:
        evictions.leaves(HERE)
        evictions.leaves(HERE)
        assert (told, len(later.due)) == ([], 1)
        assert later.pass_time() == 10.0
        assert (told, stay.must_leave) == (["a"], True)
        assert later.pass_time() < 1
        assert told == ["a"]
    later.pass_time()
    assert not later.due, "nobody is there any more"


def test_a_worker_that_remains_keeps_its_streams(make, later):
    evictions, told = make(), []
    with evictions.stay(HERE, stream(told)):
        evictions.note_draining(HERE, True)
        evictions.note_draining(HERE, False)
        evictions.remains(HERE)
    assert (told, later.due) == ([], [])


def test_streams_leave_a_few_at_a_time(make, later):
    evictions, told = make(), []
    stays = [evictions.stay(HERE, stream(told)) for _ in range(_AT_ONCE + 1)]
    for stay in stays:
        stay.__enter__()
    evictions.leaves(HERE)
    later.pass_time()
    assert len(told) == _AT_ONCE
    later.pass_time()
    assert len(told) == _AT_ONCE + 1


def test_nobody_is_told_before_there_is_somewhere_to_go(make, later):
    peers, told = [], []
    evictions = make(has_peer=lambda _: bool(peers))
    with evictions.stay(HERE, stream(told)):
        evictions.leaves(HERE)
        later.pass_time()
        assert told == []
        peers.append("another")
        later.pass_time()
        assert told == ["a"]


def test_a_stream_that_could_not_go_on_elsewhere_stays_and_so_do_those_of_other_workers(make, later):
    evictions, told = make(), []
    with evictions.stay(HERE, stream(told, may_leave=False)), evictions.stay(endpoint("w1"), stream(told, "other")):
        evictions.leaves(HERE)
        later.pass_time()
    assert told == []


def test_a_pod_that_goes_or_changes_its_address_leaves_and_one_that_comes_remains(make, later):
    evictions, moved = make(), endpoint("w0", address="10.0.0.2:1")
    evictions.note(None, HERE)
    evictions.note(HERE, HERE)
    assert not later.due
    evictions.note(HERE, moved)
    assert repr(evictions) == "Evictions(10.0.0.1:1: 0)"
    evictions.note(moved, None)
    assert repr(evictions) == "Evictions(10.0.0.1:1: 0, 10.0.0.2:1: 0)"
    evictions.note(None, HERE)
    assert repr(evictions) == "Evictions(10.0.0.2:1: 0)"
    evictions.close()
    assert not later.due
