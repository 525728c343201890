"""What a subscriber of vLLM's gets from real sockets, and what one that reads nothing can do to us: nothing."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from dormouse_worker.common.kv_events import OFF, KvEventsConfig
from dormouse_worker.front.kv_events.publisher import Kept, NoPublisher
from dormouse_worker.front.kv_events.sockets import END, MAX_REPLAYS, ZmqSockets, make_publisher
from tests.ports import free_port
from tests.waiting import until

ANY = "tcp://127.0.0.1:*"
BIG = b"x" * 12_000
NUM_BIG = 8_000  # more bytes than any socket's buffers take


class HurriedTime:
    """A clock that waits move on, and nothing else."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    async def sleep(self, seconds):
        self.now_s += seconds
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(kept=(), **fields):
    """Yield open sockets that are asked for these batches, and what connects to them."""
    by_number = dict(kept)
    first, end = min(by_number, default=0), max(by_number, default=-1) + 1

    def next_kept(number):
        number = max(number, first)
        return Kept(number, by_number[number]) if number < end else None

    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=ANY, replay_endpoint=ANY, **fields)
    time = HurriedTime()
    sockets, context = ZmqSockets(config, config.topic, clock=time, sleep=time.sleep), zmq.asyncio.Context()

    def connect(kind, *, room=1000):
        socket = context.socket(kind)
        socket.set(zmq.RCVHWM, room)
        if kind == zmq.SUB:
            socket.subscribe(config.topic)
        socket.connect(sockets.endpoints[kind != zmq.SUB])
        return socket

    try:
        sockets.open(next_kept)
        yield sockets, connect
    finally:
        await sockets.close()
        context.destroy(linger=0)


async def ask(socket, number):
    """Return what is sent again from this number on."""
    await socket.send_multipart([b"", number.to_bytes(8, "big")])
    said = []
    while (message := await socket.recv_multipart()) != [b"", END, b""]:
        said.append((int.from_bytes(message[1], "big"), message[2]))
    return said


async def join(sockets, subscriber):
    """Publish until the subscriber is heard of; return the next number."""
    number = 0
    while not await subscriber.poll(20):
        sockets.send(Kept(number, b"hello"))
        number += 1
    return number


async def test_a_subscriber_gets_topic_number_and_batch():
    async with opened(topic="kv@pod@model") as (sockets, connect):
        subscriber = connect(zmq.SUB)
        number = await join(sockets, subscriber)
        sockets.send(Kept(number, b"batch"))
        while (message := await subscriber.recv_multipart())[2] != b"batch":
            pass
        assert message == [b"kv@pod@model", number.to_bytes(8, "big"), b"batch"]


async def test_who_missed_something_asks_for_it():
    kept = [(number, b"%d" % number) for number in range(3, 9)]
    async with opened(kept) as (_, connect):
        asker, other = connect(zmq.DEALER), connect(zmq.DEALER)
        assert await ask(asker, 0) == kept
        assert await ask(other, 7) == kept[4:]
        assert await ask(asker, 9) == await ask(asker, (1 << 64) - 1) == []


@pytest.mark.parametrize("question", [[b"12345678"], [b"", b"1234567"], [b"", b"12345678", b""], [b"x", b"12345678"]])
async def test_what_is_no_question_is_not_answered(question):
    async with opened([(0, b"a")]) as (_, connect):
        asker = connect(zmq.DEALER)
        await asker.send_multipart(question)
        assert await ask(asker, 0) == [(0, b"a")]


async def test_a_subscriber_that_does_not_read_misses_batches_and_holds_nobody_up():
    async with opened(hwm=10) as (sockets, connect):
        slow, number = connect(zmq.SUB, room=1), 0
        number = await join(sockets, slow)
        for _ in range(NUM_BIG):
            sockets.send(Kept(number, BIG))
            number += 1
        heard = []
        while await slow.poll(500):
            heard.append(int.from_bytes((await slow.recv_multipart())[1], "big"))
        assert heard == sorted(heard)
        assert len(heard) < NUM_BIG


async def test_an_asker_that_does_not_read_is_given_up_and_holds_nobody_up():
    async with opened([(number, BIG) for number in range(NUM_BIG)]) as (sockets, connect):
        silent, other = connect(zmq.DEALER, room=1), connect(zmq.DEALER)
        await silent.send_multipart([b"", bytes(8)])
        await until(lambda: sockets._answers)
        assert await ask(other, NUM_BIG - 1) == [(NUM_BIG - 1, BIG)]
        await until(lambda: not sockets._answers)


async def test_more_askers_than_are_served_at_once_are_not_heard(caplog):
    caplog.set_level(logging.DEBUG)
    async with opened([(number, BIG) for number in range(NUM_BIG)]) as (sockets, connect):
        sockets._sleep = lambda _: asyncio.Event().wait()  # no answer comes to its end
        *askers, last = [connect(zmq.DEALER) for _ in range(MAX_REPLAYS + 1)]
        for asker in askers:
            await asker.send_multipart([b"", bytes(8)])
            await asker.recv_multipart()
        await last.send_multipart([b"", bytes(8)])
        await until(lambda: "not answered" in caplog.text)
        assert len(sockets._answers) == MAX_REPLAYS


async def test_a_taken_port_is_told_with_its_flag():
    port = f"tcp://*:{free_port()}"
    first, second = (
        ZmqSockets(KvEventsConfig(enable_kv_cache_events=True, endpoint=port), clock=HurriedTime()) for _ in range(2)
    )
    first.open(lambda _: None)
    with pytest.raises(RuntimeError, match=r"--kv-events-config: tcp://\*:\d+ cannot be used; is it taken"):
        second.open(lambda _: None)
    await second.close()
    await first.close()
    first.send(Kept(0, b"nobody is there"))


async def test_a_worker_without_zeromq_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(RuntimeError, match=r"needs the extra `kv-events` \(pip install 'dormouse\[kv-events\]'\)"):
        ZmqSockets(KvEventsConfig(enable_kv_cache_events=True), clock=HurriedTime()).open(lambda _: None)


async def test_others_are_connected_to_where_the_address_is_somebodys():
    context = zmq.asyncio.Context()
    router = context.socket(zmq.SUB)
    router.subscribe(b"")
    port = router.bind_to_random_port("tcp://127.0.0.1")
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://127.0.0.1:{port}")
    sockets = ZmqSockets(config, clock=HurriedTime())
    sockets.open(lambda _: None)
    await join(sockets, router)
    assert (await router.recv_multipart())[2] == b"hello"
    await sockets.close()
    context.destroy(linger=0)


async def test_a_topic_has_the_pods_address_in_its_place():
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=ANY, topic="kv@{DORMOUSE_POD_IP}@m")
    publisher = make_publisher(config, HurriedTime(), {"DORMOUSE_POD_IP": "10.1.2.3"})
    assert publisher._transport._topic == b"kv@10.1.2.3@m"
    assert type(make_publisher(OFF, HurriedTime(), {})) is NoPublisher
