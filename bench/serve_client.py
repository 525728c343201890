"""The load on one server, ours or vLLM's, as a process: `python -m bench.serve_client`, see `helpers`.

It is the client of `dormouse bench`: each request at its own time whatever becomes of the others, no more under way
than allowed, and the figures by their names in vLLM's `bench serve`. Only the way to the server differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import aiohttp
import msgspec
import uvloop

from bench.client import TIMEOUT_S, to_message
from bench.helpers import answer_questions
from bench.vllm_http import VllmClient
from bench.workload import Request
from dormouse_api.client import AsyncClient, RetryPolicy
from dormouse_cli.load import figures
from dormouse_cli.load.drive import Client, Drive
from dormouse_cli.load.figures import METRICS, Run

PERCENTS = (50, 99)
Server = Literal["ours", "vLLM"]


class Ask(msgspec.Struct, frozen=True):
    """A load."""

    server: Server
    port: int
    warm_up: Request  # sent before the others, and not counted
    requests: tuple[Request, ...]
    due_s: tuple[float, ...]  # of each
    max_concurrency: int
    limits_ms: dict[str, float]  # that a good request keeps


class Lap(msgspec.Struct, frozen=True):
    """What came of it."""

    figures: dict[str, float]  # by their names in vLLM's `bench serve`; `late` and `loop_lag` are of the client itself


def to_lap(run: Run, limits_ms: Mapping[str, float], expected: Sequence[int]) -> Lap:
    """Return a run's figures. Raises RuntimeError unless each request got exactly its tokens."""
    for number, (seen, count) in enumerate(zip(run.requests, expected, strict=True)):
        if not seen.is_good or seen.output_tokens != count:
            words = f": {seen.error} {seen.words}" if seen.error else ""
            raise RuntimeError(f"request {number} got {seen.output_tokens} tokens of {count}{words}")
    told = figures.results(run, metrics=METRICS, percents=PERCENTS, limits_ms=limits_ms)
    client = figures.client_lateness(run, PERCENTS)
    return Lap({name: float(value) for name, value in (told | client).items() if isinstance(value, (int, float))})


@asynccontextmanager
async def connected(ask: Ask) -> AsyncIterator[Client]:
    """A client of the server, closed with the block."""
    if ask.server == "ours":
        async with AsyncClient(f"127.0.0.1:{ask.port}", retry=RetryPolicy.never(), timeout_s=TIMEOUT_S) as ours:
            yield ours
        return
    connector = aiohttp.TCPConnector(limit=0)  # no request waits for another's connection
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session:
        yield VllmClient(session, ask.port)


async def drive(ask: Ask) -> Lap:
    """Send the load. Raises RuntimeError if a request failed."""
    expected = [request.max_tokens for request in ask.requests]
    async with connected(ask) as client:
        warm_up = await Drive(client, [to_message(ask.warm_up)], [0.0], 1).run()
        to_lap(warm_up, {}, [ask.warm_up.max_tokens])
        messages = [to_message(request) for request in ask.requests]
        run = await Drive(client, messages, ask.due_s, ask.max_concurrency).run()
    return to_lap(run, ask.limits_ms, expected)


def main() -> None:
    """Answer asks until standard input ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # one loop: gRPC is not made for several
        answer_questions(Ask, lambda ask: runner.run(drive(ask)))


if __name__ == "__main__":
    main()
