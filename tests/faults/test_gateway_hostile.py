"""Clients that mean harm: slow, huge, endless. Others are served all the while, and memory stays within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import grpc
import pytest

from tests.faults import raw_http2 as raw
from tests.faults.gateway_process import ANSWER
from tests.faults.town import Town
from tests.gateway.kit import tokens_of

GENERATE = "/dormouse.v1.Inference/Generate"
_MIB = 1 << 20
_ROUNDS, _IN_ROUND = 200, 100


def pings(_number: int) -> bytes:
    """Return signs of life, far too many."""
    return raw.frame(raw.PING, 0, 0, bytes(8))


def settings(number: int) -> bytes:
    """Return a change of settings, each of which has to be answered."""
    return raw.frame(raw.SETTINGS, 0, 0, b"\x00\x04" + (65535 + number % 2).to_bytes(4, "big"))


def rapid_resets(number: int) -> bytes:
    """Return a call that is begun and cancelled (CVE-2023-44487)."""
    return raw.cancelled_call(2 * number + 1, GENERATE)


def continuations(number: int) -> bytes:
    """Return headers that never end (CVE-2024-27316)."""
    kind = raw.CONTINUATION if number else raw.HEADERS
    return raw.frame(kind, 0, 1, raw.request_headers(GENERATE) if not number else raw.header(f"x-{number}", "y" * 100))


def empty_data(number: int) -> bytes:
    """Return a request in pieces of nothing (CVE-2019-9518)."""
    if number == 0:
        return raw.frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request_headers(GENERATE))
    return raw.frame(raw.DATA, 0, 1)


def rounds(flood: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the flood in pieces."""
    for start in range(0, _ROUNDS * _IN_ROUND, _IN_ROUND):
        yield b"".join(flood(number) for number in range(start, start + _IN_ROUND))


@pytest.mark.parametrize(
    "flood",
    [rapid_resets, continuations, *(pytest.param(f, marks=pytest.mark.slow) for f in (pings, settings, empty_data))],
)
async def test_a_flood_of_http2_frames_harms_nobody_else(town: Town, flood: Callable[[int], bytes]) -> None:
    worker = await town.worker()
    await town.model("m", worker.address)
    async with town.gateway() as gateway, gateway.client() as client:
        assert await tokens_of(client.ask("m")) == ANSWER
        before_bytes = gateway.memory_bytes
        async with raw.connected(gateway.port) as hostile:
            reading = asyncio.create_task(hostile.until_closed())
            for piece in rounds(flood):
                if not await hostile.say(piece) or reading.done():
                    break
            assert await tokens_of(client.ask("m")) == ANSWER
            reading.cancel()
            await asyncio.wait({reading})
        assert await tokens_of(client.ask("m")) == ANSWER
        assert gateway.memory_bytes - before_bytes < 64 * _MIB
        assert len(worker.seen) == 3, "nothing of it reached a worker"


async def test_who_asks_for_signs_of_life_without_end_is_sent_away(town: Town) -> None:
    async with town.gateway() as gateway, raw.connected(gateway.port) as hostile:
        await hostile.say(*(pings(number) for number in range(5)))  # with more, its last word might be lost
        async with asyncio.timeout(90):
            assert b"too_many_pings" in await hostile.until_closed()


@pytest.mark.slow
async def test_slow_senders_are_sent_away_at_both_doors_and_keep_nobody_out(town: Town) -> None:
    """Slowloris: 200 connections each, with no word, half a greeting, half a request, half a body."""
    worker = await town.worker()
    await town.model("m", worker.address)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    slow_http = (b"", b"POST /v1/comp", head, head + b"content-length: 1000\r\n\r\n{")
    slow_grpc = (b"", raw.PREFACE[:10], raw.PREFACE, raw.PREFACE + b"\x00\x00")
    async with town.gateway(http_timeout=2) as gateway, gateway.client() as client, AsyncExitStack() as slow:
        ports = [(gateway.http_port, words) for words in slow_http] + [(gateway.port, words) for words in slow_grpc]
        opened = [
            await slow.enter_async_context(raw.connected(port, words)) for port, words in ports for _ in range(50)
        ]
        assert await tokens_of(client.ask("m")) == ANSWER
        assert await gateway.models() == ["m"]
        async with asyncio.timeout(40):
            await asyncio.gather(*(connection.until_closed() for connection in opened))
        assert await tokens_of(client.ask("m")) == ANSWER


async def test_what_is_too_large_or_unreadable_gets_a_typed_error(town: Town) -> None:
    worker = await town.worker()
    await town.model("m", worker.address)
    async with town.gateway() as gateway, gateway.client() as client:
        generate = client.channel.unary_stream(GENERATE)
        for call, code in (
            (client.ask("m", metadata=(("x-much", "y" * (32 << 10)),)), grpc.StatusCode.RESOURCE_EXHAUSTED),
            (client.ask("m", text="x" * (40 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED),  # than images may be
            (client.ask("m", text="x" * (3 << 20)), grpc.StatusCode.INVALID_ARGUMENT),
            (client.ask("m", text="x" * ((1 << 20) + 1)), grpc.StatusCode.INVALID_ARGUMENT),
            (client.ask("other"), grpc.StatusCode.NOT_FOUND),
            (generate(b"\xff\xff\xff"), grpc.StatusCode.INVALID_ARGUMENT),
            (client.channel.unary_stream("/dormouse.v1.Inference/Other")(b""), grpc.StatusCode.UNIMPLEMENTED),
        ):
            assert await call.code() is code, await call.details()
        assert worker.seen == []
        assert await tokens_of(client.ask("m")) == ANSWER
