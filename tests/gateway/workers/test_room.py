"""How many requests a worker gets, as it tells of itself."""

import pytest

from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.workers.room import FIRST_WINDOW, AdmissionWindow, WorkerCapacity

BATCH = WorkerCapacity(max_running=64, max_waiting=32)


def load(running=0, waiting=0, *, ready=True):
    return WorkerLoad(running, waiting, 0.0, ready)


def most(room, batch=BATCH):
    """Return how many requests the worker gets before it has no room."""
    return next(outstanding for outstanding in range(1000) if not room.takes(outstanding, batch))


def test_a_worker_that_tells_nothing_gets_its_batch_and_some_to_wait():
    assert most(AdmissionWindow()) == 96


def test_a_worker_that_has_just_woken_gets_a_few_and_twice_as_many_each_time_it_has_taken_them_up():
    room, given = AdmissionWindow(), []
    room.tell(load(ready=False), 0)
    for _ in range(6):
        room.tell(load(), 0)
        given.append(most(room))
    assert given == [8, 16, 32, 64, 96, 96]


def test_as_long_as_some_wait_there_it_gets_no_more_at_a_time():
    room = AdmissionWindow()
    for told in (load(ready=False), load(), load(4, 4), load(8, 0)):
        room.tell(told, 8)
        given = most(room)
    assert given == 2 * FIRST_WINDOW


def test_every_request_that_ends_makes_room_for_itself_and_one_more():
    room = AdmissionWindow()
    for told in (load(ready=False), load()):
        room.tell(told, 0)
    for _ in range(4):
        room.end()
    assert most(room) == FIRST_WINDOW + 4


def test_a_worker_that_is_awake_when_first_heard_gets_all_that_it_can_take():
    room = AdmissionWindow()
    room.tell(load(30), 20)
    assert (room.others, most(room)) == (10, 86)


def test_a_worker_that_opens_with_work_gets_more_than_it_has():
    room = AdmissionWindow()
    for told in (load(ready=False), load(30)):
        room.tell(told, 20)
    assert most(room) == 60


def test_what_it_has_from_others_counts():
    room = AdmissionWindow()
    room.tell(load(90), 0)
    assert most(room) == 6


@pytest.mark.parametrize(("waiting", "has_room"), [(32, True), (33, False)])
def test_a_worker_that_falls_behind_gets_nothing_though_its_batch_is_not_full(waiting, has_room):
    room = AdmissionWindow()
    room.tell(load(10, waiting), 43)
    assert room.takes(43, BATCH) is has_room


def test_a_worker_that_slept_is_fresh_again():
    room = AdmissionWindow()
    for told in (load(), load(), load(), load(ready=False), load()):
        room.tell(told, 0)
    assert room.window == FIRST_WINDOW
    assert room.is_open


def test_one_that_drains_or_is_heard_no_more_is_not_open():
    room = AdmissionWindow()
    for told in (load(ready=False), None):
        room.tell(told, 0)
        assert not room.is_open


def test_the_window_is_bounded():
    room = AdmissionWindow()
    for _ in range(100):
        room.tell(load(), 0)
    room.end()
    assert room.window == 1 << 16
