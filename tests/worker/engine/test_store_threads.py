"""The threads of a store: what nobody waits for any more ends, and its memory is read into again."""

from __future__ import annotations

import pytest

from dormouse_worker.engine import store_threads
from dormouse_worker.engine.sources import Source
from dormouse_worker.engine.store_threads import Reading, StoreThreads, name_of
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.kv_store.interface import Block
from dormouse_worker.kv_store.testing import DictBlockStore

SIZE = 8
KEYS = [(0, bytes([number]) * 32) for number in range(4)]


class GivesUp:
    """A room that is never free; who waits for it a second time is given up meanwhile."""

    def __init__(self, reading):
        self.reading = reading
        self.asked = 0

    def acquire(self, timeout):
        del timeout
        self.asked += 1
        if self.asked > 1:
            self.reading.give_up()
        return False


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(store_threads, "CHUNK_BYTES", SIZE)
    monkeypatch.setattr(store_threads, "NUM_CHUNKS", 1)
    store = DictBlockStore()
    store.write([Block(name_of(key), memoryview(bytes(SIZE))) for key in KEYS])
    return StoreThreads(store, SIZE, ManualClock())


def begun(threads):
    reading = Reading(KEYS, len(KEYS) * SIZE, 60.0, Source(threads._store))
    threads.read(reading, lambda *_: None)
    return reading


def wait_for(threads):
    threads._reader.submit(lambda: None).result(60.0)


def test_a_reading_that_waits_for_room_ends_when_it_is_given_up(threads):
    reading = Reading(KEYS, len(KEYS) * SIZE, 60.0, Source(threads._store))
    threads._room = GivesUp(reading)
    threads.read(reading, lambda *_: None)
    wait_for(threads)
    assert (reading.is_read, reading.take(), threads._room.asked) == (True, None, 2)


def test_chunks_that_nobody_takes_are_given_back(threads):
    for _ in range(2):  # the second reads into what the first had
        reading = begun(threads)
        assert not reading.is_done(60.0)
        reading.give_up()
        wait_for(threads)
        assert reading.is_read
    assert len(threads._free) == 1


def test_it_says_what_it_is():
    reading = Reading(KEYS, 0, 60.0, Source(DictBlockStore()))
    assert repr(reading) == "Reading(4 blocks, done=False, given_up=False)"
