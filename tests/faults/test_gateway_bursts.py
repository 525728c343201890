"""Ten times more requests than may wait, for a model that sleeps. F27 of the fault matrix."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import grpc
import pytest

from dormouse_api.status import retry_after_s
from tests.faults.gateway_process import ANSWER, Client
from tests.faults.town import Town
from tests.gateway.kit import tokens_of

LIMIT = 100
BURST = 10 * LIMIT
_MIB = 1 << 20


async def outcome(call: Any) -> tuple[Any, ...]:
    """Return the tokens, or the status with its sentence and the seconds after which to come again."""
    try:
        return tuple(await tokens_of(call))
    except grpc.RpcError as error:
        return (error.code(), error.details(), retry_after_s(error))


async def burst(town: Town, client: Client, count: int, num_refused: int, **how: Any) -> list[asyncio.Task[Any]]:
    """Send many requests at once; return them once so many of them were refused."""
    tasks = [asyncio.create_task(outcome(client.ask("sleeper", **how))) for _ in range(count)]
    await town.until(lambda: sum(task.done() for task in tasks) == num_refused)
    return tasks


async def fill(client: Client) -> list[asyncio.Task[Any]]:
    """Send as many requests as may wait, each once the one before is known to wait: so their order is known."""
    tasks = []
    for number in range(LIMIT):
        call = client.ask("sleeper", f"{number:03}")
        await call.initial_metadata()
        tasks.append(asyncio.create_task(outcome(call)))
    return tasks


async def test_beyond_the_limit_all_are_refused_and_the_others_are_answered_in_order(town: Town) -> None:
    worker = await town.worker()
    engine = {"device": "cpu", "maxNumSeqs": 1}
    await town.model("sleeper", worker.address, is_asleep=True, lifecycle={"maxHeldRequests": LIMIT}, engine=engine)
    worker.tell_load(ready=False)
    async with (
        town.gateway(worker_queue=0) as gateway,
        gateway.client() as client,
        aiohttp.ClientSession() as session,
    ):
        admitted = await fill(client)
        refused = await burst(town, client, BURST - LIMIT, BURST - LIMIT)
        words = f"{LIMIT} requests wait already; the limit is {LIMIT} (spec.lifecycle.maxHeldRequests)"
        told = f"{town.namespace}/sleeper has no worker for this request now, and {words}"
        assert {task.result() for task in refused} == {(grpc.StatusCode.RESOURCE_EXHAUSTED, told, 5.0)}
        url, body = f"http://127.0.0.1:{gateway.http_port}/v1/completions", {"model": "sleeper", "prompt": "a"}
        async with session.post(url, json=body) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "5")
            assert words in (await answer.json())["error"]["message"]
        await town.holds(gateway, LIMIT)
        worker.tell_load(ready=True)
        assert set(await asyncio.gather(*admitted)) == {tuple(ANSWER)}
        assert [int(seen.request.request_id) for seen in worker.seen] == list(range(LIMIT)), "first in, first out"
        assert town.writes() == [], "who waits is told to the operator"


@pytest.mark.slow
async def test_what_waits_is_bounded_by_its_bytes_and_burst_after_burst_costs_no_more_memory(town: Town) -> None:
    """Prompts of 64 KiB, where 2 MiB may wait: 31 of the first burst do, of the next bursts none."""
    worker = await town.worker()
    await town.model("sleeper", worker.address, is_asleep=True)
    worker.tell_load(ready=False)
    num_held, prompt = 31, "x" * (64 << 10)
    async with town.gateway(max_held_bytes=2 * _MIB) as gateway, gateway.client() as client:
        idle_bytes = gateway.memory_bytes
        tasks = await burst(town, client, 500, 500 - num_held, text=prompt)
        await town.holds(gateway, num_held)
        first_bytes = gateway.memory_bytes
        for _ in range(3):
            refused = await burst(town, client, 500, 500, text=prompt)
            assert {task.result()[0] for task in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert "the limit is 2097152 per model" in refused[0].result()[1]
        assert first_bytes - idle_bytes < 128 * _MIB
        assert gateway.memory_bytes - first_bytes < 48 * _MIB
        worker.tell_load(ready=True)
        assert {await task for task in tasks if not task.done()} == {tuple(ANSWER)}
