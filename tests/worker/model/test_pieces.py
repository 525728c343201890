"""A computation in pieces beside one that does not stop in time: its owner goes on, and it too."""

from __future__ import annotations

import threading

import pytest

from dormouse_worker.model.pieces import Pieces


class Storage:
    """Something that answers when it is told to."""

    def __init__(self):
        self.is_asked, self.answers = threading.Event(), threading.Event()

    def read(self, pause):
        pause()
        self.is_asked.set()
        self.answers.wait()
        pause()
        return "read"


@pytest.fixture
def storage():
    made = Storage()
    yield made
    made.answers.set()


def reading(storage):
    """Return a computation that does not stop."""
    pieces = Pieces(storage.read, name="reader")
    assert not pieces.advance(0)
    assert not pieces.advance(0, patience_s=0.001)
    storage.is_asked.wait()
    return pieces


def test_who_has_no_patience_goes_on_and_the_result_comes_when_it_can(storage):
    pieces = reading(storage)
    assert not pieces.advance(0, patience_s=0.001)
    assert repr(pieces) == "Pieces(under way)"
    storage.answers.set()
    assert pieces.finish() == "read"
    assert not [thread for thread in threading.enumerate() if thread.name == "reader"]


def test_what_came_back_meanwhile_waits_for_its_owner(storage):
    pieces = reading(storage)
    storage.answers.set()
    while not pieces.advance(0, patience_s=0.001):
        pass
    assert pieces.finish() == "read"


def test_what_stopped_before_its_owner_came_again_does_not_keep_its_owner_waiting(storage):
    pieces = reading(storage)
    storage.answers.set()
    pieces._stopped.acquire()  # it waits at its next pause
    pieces._stopped.release()
    assert pieces.finish() == "read"


def test_what_does_not_stop_is_left_without_waiting_and_ends_when_it_can(storage):
    pieces = reading(storage)
    pieces.leave()
    assert repr(pieces) == "Pieces(done)"
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "reader")
    storage.answers.set()
    thread.join()


def test_what_is_parked_is_left_at_once():
    ended = threading.Event()

    def compute(pause):
        try:
            pause()
        finally:
            ended.set()

    pieces = Pieces(compute, name="reader")
    pieces.advance(0)
    pieces.leave()
    assert ended.is_set()
    assert repr(pieces) == "Pieces(done)"
