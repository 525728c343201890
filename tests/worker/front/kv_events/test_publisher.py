"""Numbers, what is kept, and when it is said that nothing is cached."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.common.kv_events import KvEventsConfig
from dormouse_worker.front.kv_events import publisher as module
from dormouse_worker.front.kv_events.publisher import Publisher

CLEARED = msgspec.msgpack.encode([5.0, [{"type": "AllBlocksCleared"}], 0])


class FakeTransport:
    """Remembers what it was given."""

    def __init__(self):
        self.sent = []
        self.is_open = False

    def open(self, _):
        self.is_open = True

    def send(self, kept):
        self.sent.append(tuple(kept))

    async def close(self):
        self.is_open = False


def start(**fields):
    """Return a started publisher, what it sends by, and nothing sent so far but that nothing is cached."""
    transport = FakeTransport()
    config = KvEventsConfig(enable_kv_cache_events=True, **{"replay_endpoint": "tcp://*:5558", **fields})
    publisher = Publisher(transport, config, lambda: 5.0)
    publisher.start()
    assert transport.is_open
    assert transport.sent == [(0, CLEARED)]
    return publisher, transport


def test_batches_have_numbers_without_gaps():
    publisher, transport = start()
    publisher.publish([b"a", b"b"])
    publisher.publish([])
    publisher.publish([b"c"])
    assert transport.sent[1:] == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_that_nothing_is_cached_is_said_once():
    publisher, transport = start()
    publisher.clear()
    assert len(transport.sent) == 1
    publisher.publish([b"a"])
    publisher.clear()
    publisher.clear()
    assert transport.sent[1:] == [(1, b"a"), (2, CLEARED)]


@pytest.mark.parametrize("state", State)
def test_a_cache_is_there_from_its_agreement_to_the_engines_end(state):
    publisher, transport = start()
    publisher.publish([b"a"])
    publisher.follow(EngineStatus(state))
    is_kept = transport.sent[-1] == (1, b"a")
    assert is_kept == (state in {State.READY, State.ASLEEP, State.WAKING})


def test_batches_are_kept_up_to_a_number_and_a_size(monkeypatch):
    publisher, _ = start(buffer_steps=3)
    publisher.publish([b"1", b"2", b"3", b"4"])
    assert publisher.next_kept(0) == publisher.next_kept(2) == (2, b"2")
    assert publisher.next_kept(4) == (4, b"4")
    assert publisher.next_kept(5) is None
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 10)
    publisher.publish([b"x" * 9])
    assert publisher.next_kept(0) == (4, b"4")
    publisher.publish([b"y" * 11])
    assert publisher.next_kept(0) is None


def test_nothing_is_kept_where_nobody_can_ask_for_it():
    publisher, _ = start(replay_endpoint=None)
    publisher.publish([b"a"])
    assert publisher.next_kept(0) is None


def test_it_ends_with_its_sockets():
    publisher, transport = start()
    asyncio.run(publisher.stop())
    assert not transport.is_open
