"""Calls that a gateway has carried to a worker: both ends as they are, over loopback; what generates is made up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
import pytest
from grpc import aio

from dormouse_api.names import Role
from dormouse_api.status import STATUS_DETAILS, CallError
from dormouse_api.testing_tickets import GATEWAY_SEED, STRANGE_SEED, proof
from dormouse_api.v1 import relay_pb2 as wire
from dormouse_gateway.workers.relay import MAX_BATCH_BYTES, PAUSE_AT, Relay
from dormouse_worker.front.api.relay import Carrier, Room
from tests.relay.conftest import Speaker, read_all, running_line
from tests.waiting import until


async def test_a_call_is_answered_message_by_message_and_ends(line):
    messages = await read_all(line.call("hello"))
    assert [list(message.token_ids) for message in messages] == [[0], [1], [2]]
    assert {message.text for message in messages} == {"hello"}
    assert line.speaker.ended == ["hello"]
    assert repr(line.relay) == "Relay(open, 0 calls)"


async def test_many_calls_share_the_stream_and_keep_to_themselves(line):
    texts = [f"text {number}" for number in range(64)]
    answers = await asyncio.gather(*(read_all(line.call(text)) for text in texts))
    assert [{message.text for message in answer} for answer in answers] == [{text} for text in texts]


async def test_metadata_and_time_reach_the_servicer_as_over_grpc(line):
    await read_all(line.call(timeout_s=20.0, metadata=(("traceparent", "00-1"), ("some-bin", b"\x00\xff"))))
    assert line.speaker.metadata == [{"traceparent": "00-1", "some-bin": b"\x00\xff"}]
    assert 0 < line.speaker.remaining_s[0] <= 20.0


async def test_a_status_comes_with_its_details_after_the_messages(line):
    line.speaker.error = CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", 2.0)
    call = line.call()
    for _ in range(3):
        await call.read()
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "the queue is full"
    assert dict(caught.value.trailing_metadata())[STATUS_DETAILS]


async def test_a_servicer_that_fails_ends_its_own_call_only(line, caplog):
    line.speaker.error = RuntimeError("surprise")
    with pytest.raises(aio.AioRpcError, match="internal error; look for id="):
        await read_all(line.call())
    line.speaker.error = None
    assert len(await read_all(line.call())) == 3
    assert "unexpected error" in caplog.text


async def test_who_cancels_frees_the_worker_and_reads_no_more(line):
    line.speaker.is_gated = True
    call = line.call()
    await call.read()
    reading = asyncio.create_task(call.read())
    await asyncio.sleep(0)
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await until(lambda: line.speaker.ended == ["hello"])
    assert not call.cancel()


async def test_a_call_that_is_dropped_before_it_was_sent_never_begins(line):
    line.call("never").cancel()
    await read_all(line.call("then"))
    assert line.speaker.ended == ["then"]


async def test_a_deadline_ends_the_call_on_both_sides(line):
    line.speaker.is_gated = True
    call = line.call(timeout_s=0.05)
    with pytest.raises(aio.AioRpcError) as caught:
        await read_all(call)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: line.speaker.ended == ["hello"])


async def test_a_reader_that_stops_is_not_sent_everything_and_holds_nobody_up(line):
    line.speaker.number = 10_000
    stopped = line.call("stopped")
    await until(lambda: line.speaker.given["stopped"] > PAUSE_AT)
    line.speaker.number = 300
    for _ in range(2):  # the first brings the gateway to the pause, and the second is begun behind it
        assert len(await read_all(line.call("other"))) == 300
    given = line.speaker.given["stopped"]
    await read_all(line.call("other"))
    assert line.speaker.given["stopped"] == given, "each message of the other could have brought one"
    for _ in range(given):
        await stopped.read()
    await until(lambda: line.speaker.given["stopped"] > given)


async def test_more_calls_than_the_worker_takes_are_refused_by_the_limit_s_name():
    async with running_line(max_open_calls=1, is_gated=True) as line:
        await until(lambda: line.relay.is_open)
        first = line.call()
        await first.read()
        with pytest.raises(aio.AioRpcError, match="--max-open-calls") as caught:
            await line.call().read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        line.speaker.gate.set()
        assert len(await read_all(first)) == 2
        assert len(await read_all(line.call())) == 3


async def test_a_worker_that_ends_lets_calls_end_and_then_the_stream(line):
    line.speaker.is_gated = True
    call = line.call()
    await call.read()
    line.service.close()
    line.speaker.gate.set()
    assert len(await read_all(call)) == 2
    await until(lambda: not line.relay.is_open)


async def test_a_stream_that_breaks_fails_its_calls_as_a_connection_would_and_opens_again(line):
    line.speaker.is_gated = True
    call = line.call()
    await call.read()
    await line.server.stop(None)
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not caught.value.trailing_metadata()
    assert not line.relay.is_open
    await until(lambda: line.speaker.ended == ["hello"])


async def test_requests_that_make_one_message_too_large_go_in_several(line):
    text = "x" * (MAX_BATCH_BYTES // 8)
    line.speaker.text = "y"
    answers = await asyncio.gather(*(read_all(line.call(text)) for _ in range(100)))
    assert [len(answer) for answer in answers] == [3] * 100


async def test_large_answers_of_many_calls_pass_too(line):
    line.speaker.text = "x" * 1_000_000
    answers = await asyncio.gather(*(read_all(line.call("a")) for _ in range(16)))
    assert {len(message.text) for answer in answers for message in answer} == {1_000_000}


async def test_who_does_not_prove_the_gateways_role_is_carried_nothing():
    async with running_line(seed=STRANGE_SEED) as line:
        line.relay.open_soon()
        await until(line.relay._running.done)
        assert not line.relay.is_open
        first = line.relay._running
        line.relay.open_soon()
        assert line.relay._running is first, "it is not tried again for a minute"


async def test_who_proves_it_later_is_carried_then(line):
    """A clock that was wrong is put right, and nobody tells."""
    now_s, seeds = [0.0], [STRANGE_SEED]
    async with aio.insecure_channel(f"127.0.0.1:{line.port}") as channel:
        relay = Relay(channel, lambda: proof(Role.GATEWAY, seed=seeds[-1]), clock=lambda: now_s[0])
        relay.open_soon()
        await relay._running
        seeds.append(GATEWAY_SEED)
        now_s[0] = 59.0
        relay.open_soon()
        assert relay._running.done()
        now_s[0] = 60.0
        relay.open_soon()
        await until(lambda: relay.is_open)
        await relay.aclose()


async def test_a_worker_without_the_service_is_asked_once():
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        relay = Relay(channel, lambda: proof(Role.GATEWAY))
        relay.open_soon()
        first = relay._running
        await first
        relay.open_soon()
        assert relay._running is first
        assert not relay.is_open
    await server.stop(None)


async def test_a_number_that_is_used_twice_ends_the_stream():
    async with running_line(is_gated=True) as line:
        await until(lambda: line.relay.is_open)
        call = line.call()
        await call.read()
        line.relay._outgoing.begin.append(wire.CarriedCall(call=1, timeout_s=1.0))
        line.relay._is_filled.set()
        with pytest.raises(aio.AioRpcError, match="call 1 was begun twice"):
            await call.read()


async def test_a_call_that_is_cancelled_in_the_message_that_begins_it_leaves_nothing():
    room, speaker = Room(1), Speaker()
    carrier = Carrier(speaker.generate, room, "ipv4:10.0.0.1:5000")
    carrier._take(wire.CarryRequest(begin=[wire.CarriedCall(call=7, timeout_s=1.0)], cancel=[7]))
    assert room.is_full
    await until(lambda: not room.is_full)
    assert repr(carrier) == "Carrier(0 calls)"
    assert speaker.ended == []


async def test_a_worker_ends_a_call_by_its_deadline_even_if_its_gateway_says_nothing():
    room, speaker = Room(1), Speaker(is_gated=True)
    carrier = Carrier(speaker.generate, room, "ipv4:10.0.0.1:5000")
    carrier._take(wire.CarryRequest(begin=[wire.CarriedCall(call=7, timeout_s=0.05)]))
    await until(lambda: not room.is_full)
    assert speaker.ended == [""]


@dataclass
class OneMessage:
    """A stream that brings one message of a worker, and ends."""

    responses: list[wire.CarryResponse]

    async def read(self):
        return self.responses.pop(0) if self.responses else aio.EOF

    async def write(self, _):
        """Take what the gateway says."""


async def test_the_first_answer_of_a_call_is_sent_on_before_those_that_follow_it_are_read(line):
    """To send the first one takes a task of its own, which would come behind all others."""
    order, calls = [], {"begun": line.call("begun"), "new": line.call("new")}
    calls["begun"].feed(b"before")
    assert await calls["begun"].read() == b"before"

    async def send(name):
        order.append(name)

    async def pass_on(name):
        await calls[name].read()
        await (asyncio.create_task(send(name)) if name == "new" else send(name))

    reading = [asyncio.create_task(pass_on(name)) for name in calls]
    await asyncio.sleep(0)
    parts = [wire.CarriedPart(call=calls[name]._number, message=b"now") for name in ("new", "begun")]
    await line.relay._exchange(OneMessage([wire.CarryResponse(parts=parts)]))
    await asyncio.gather(*reading)
    assert order == ["new", "begun"]
