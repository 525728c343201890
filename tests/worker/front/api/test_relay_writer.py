"""What calls that share a stream say, gathered into messages: in which order."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.v1 import relay_pb2 as wire
from dormouse_worker.front.api.relay_writer import RelayWriter


class Gateway:
    """Takes one message after the other, each when the test lets it."""

    def __init__(self):
        self.messages = []
        self._has_taken = asyncio.Semaphore(0)

    async def write(self, message):
        self.messages.append([(part.call, part.WhichOneof("what")) for part in message.parts])
        await self._has_taken.acquire()

    def take(self):
        self._has_taken.release()


@pytest.fixture
def gateway():
    return Gateway()


@pytest.fixture
async def writer(gateway):
    made = RelayWriter()
    writing = asyncio.create_task(made.write_to(gateway.write))
    yield made
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_answers_stand_before_the_others_in_the_order_in_which_they_came(writer, gateway):
    """Those of calls that ended stay behind what they said."""
    await writer.put(1, b"1")
    await settle()
    waiting = [asyncio.create_task(writer.put(call, b"2", is_first=call > 2)) for call in (1, 2, 3, 4)]
    await settle()
    writer.end(5, wire.CarriedStatus())
    gateway.take()
    await settle()
    assert gateway.messages == [
        [(1, "message")],
        [(3, "message"), (4, "message"), (5, "end"), (1, "message"), (2, "message")],
    ]
    await asyncio.gather(*waiting)


async def test_a_message_counts_its_own_first_answers_alone(writer, gateway):
    """Else those of the next one would not stand in front."""
    await writer.put(1, b"1", is_first=True)
    await settle()
    gateway.take()
    await settle()
    await writer.put(1, b"2")
    await writer.put(2, b"1", is_first=True)
    await settle()
    assert gateway.messages == [[(1, "message")], [(2, "message"), (1, "message")]]
