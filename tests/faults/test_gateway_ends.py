"""A gateway must go, is killed, and comes back: F25 and F26 of the fault matrix."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import grpc
import pytest

from dormouse_api.status import retry_after_s
from dormouse_gateway.testing.workers import FakeWorker
from tests.faults.gateway_process import ANSWER, Client
from tests.faults.raw_http2 import cut
from tests.faults.town import Town
from tests.gateway.kit import tokens_of

LAME_DUCK_S = 4.0  # a busy machine gives nobody a turn for a second or two
ENDING = "this gateway is shutting down; the request was not sent to any worker"


async def accepts(port: int) -> bool:
    """Return whether somebody listens on a port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    await cut(writer)
    return True


def ids_of(*workers: FakeWorker) -> Counter[str]:
    """Return how often each request reached a worker."""
    return Counter(seen.request.request_id for worker in workers for seen in worker.seen if seen.method == "Generate")


async def handed_back(call: Any) -> str:
    """Return the id of a request that its gateway gives back, with the word that it may be sent again at once."""
    with pytest.raises(grpc.RpcError) as caught:
        await tokens_of(call)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, ENDING)
    assert retry_after_s(caught.value) == 1.0
    return "handed back"


async def complete_over_http(port: int, model: str) -> tuple[int, str]:
    """Ask for text over HTTP; return the status and Retry-After."""
    url, body = f"http://127.0.0.1:{port}/v1/completions", {"model": model, "prompt": "a"}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        await answer.read()
        return answer.status, answer.headers.get("Retry-After", "")


@pytest.mark.parametrize(
    ("num_held", "num_streams", "drain_s"),
    [(100, 20, 14.0), pytest.param(1000, 200, 20.0, marks=pytest.mark.slow)],
)
async def test_sigterm_while_many_are_held_and_streaming_loses_none(
    town: Town, num_held: int, num_streams: int, drain_s: float
) -> None:
    """F25: what runs ends, what can be woken in time is answered, the rest is handed back and answered elsewhere."""
    num_woken, num_http = num_held // 2, num_held // 50
    num_left = num_held - num_woken - num_http
    chatty, rising, sleeper = [await town.worker() for _ in range(3)]
    chatty.is_gated = True
    await town.model("chatty", chatty.address, engine={"device": "cpu", "maxNumSeqs": 256})
    await town.model("rising", rising.address, is_asleep=True)
    await town.model("sleeper", sleeper.address, is_asleep=True)
    rising.tell_load(ready=False)
    sleeper.tell_load(ready=False)
    async with (
        town.gateway(lame_duck=LAME_DUCK_S, drain_timeout=drain_s) as leaving,
        town.gateway() as staying,
        leaving.client() as one,
        leaving.client() as two,
        staying.client() as other,
    ):
        streams = [one.ask("chatty", f"chatty-{n}") for n in range(num_streams)]
        begun = [(await stream.read()).token_ids[0] for stream in streams]
        risers = [asyncio.create_task(tokens_of(two.ask("rising", f"rising-{n}"))) for n in range(num_woken)]
        sleepers = [asyncio.create_task(handed_back(two.ask("sleeper", f"sleeper-{n}"))) for n in range(num_left)]
        over_http = [asyncio.create_task(complete_over_http(leaving.http_port, "sleeper")) for _ in range(num_http)]
        await town.holds(leaving, num_held)

        leaving.terminate()

        async def is_unready() -> bool:
            return not await leaving.is_ready()

        async def is_closed() -> bool:
            return not (await accepts(leaving.port) or await accepts(leaving.http_port))

        await town.eventually(is_unready)
        assert await accepts(leaving.port), "the cluster needs time to learn of it"
        await town.eventually(is_closed)
        rising.tell_load(ready=True)
        assert await asyncio.gather(*risers) == [ANSWER] * num_woken
        chatty.gate.set()
        rest = await asyncio.gather(*(tokens_of(stream) for stream in streams))
        assert [[first, *more] for first, more in zip(begun, rest, strict=True)] == [ANSWER] * num_streams
        assert Counter(await asyncio.gather(*sleepers)) == {"handed back": num_left}
        assert Counter(await asyncio.gather(*over_http)) == {(503, "1"): num_http}
        assert await leaving.ended(LAME_DUCK_S + drain_s + 60.0) == 0

        again = [asyncio.create_task(tokens_of(other.ask("sleeper", f"sleeper-{n}"))) for n in range(num_left)]
        await town.holds(staying, num_left)
        sleeper.tell_load(ready=True)
        assert await asyncio.gather(*again) == [ANSWER] * num_left
    counts = ids_of(chatty, rising, sleeper)
    assert (len(counts), set(counts.values())) == (num_streams + num_woken + num_left, {1}), (
        "none was lost, none ran twice"
    )


async def test_sigkill_of_one_of_two_gateways_costs_its_own_connections_one_retry_each(town: Town) -> None:
    """F26: 500 requests of 20 clients and 40 long streams, half of them at the gateway that dies in between."""
    worker, narrator = await town.worker(), await town.worker()
    narrator.is_gated = True
    await town.model("busy", worker.address)
    await town.model("long", narrator.address)
    async with (
        town.gateway() as doomed,
        town.gateway() as other,
        doomed.client() as at_doomed,
        other.client() as at_other,
    ):
        long = {where: [where.ask("long") for _ in range(20)] for where in (at_doomed, at_other)}
        await asyncio.gather(*(stream.read() for streams in long.values() for stream in streams))
        failed: Counter[Client] = Counter()
        retries: Counter[bool] = Counter()

        async def call(clients: tuple[Client, Client]) -> None:
            for _ in range(25):
                first, second = clients
                try:
                    assert await tokens_of(first.ask("busy")) == ANSWER
                except grpc.RpcError:
                    failed[first] += 1
                    retries[await is_answered(second)] += 1
                if len(worker.seen) > 200 and doomed.is_alive:
                    doomed.kill()

        pairs = [(at_doomed, at_other), (at_other, at_doomed)]
        await asyncio.gather(*(call(pairs[number % 2]) for number in range(20)))
        assert not doomed.is_alive
        assert failed[at_doomed] > 0
        assert failed[at_other] == 0
        assert retries[False] <= 5, "at least 99 of 100 requests are answered after one retry"
        for stream in long[at_doomed]:
            with pytest.raises(grpc.RpcError) as caught:
                await tokens_of(stream)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await narrator.cancelled.wait()
        narrator.gate.set()
        assert await asyncio.gather(*(tokens_of(stream) for stream in long[at_other])) == [ANSWER[1:]] * 20


async def is_answered(client: Client) -> bool:
    """Return whether a request is answered."""
    try:
        return await tokens_of(client.ask("busy")) == ANSWER
    except grpc.RpcError:
        return False


async def test_a_gateway_that_was_killed_knows_all_models_again_and_wakes_those_that_sleep(town: Town) -> None:
    awake, asleep = await town.worker(), await town.worker()
    await town.model("awake", awake.address)
    await town.model("asleep", asleep.address, is_asleep=True)
    asleep.tell_load(ready=False)
    await town.model("zero", is_asleep=True)
    async with town.gateway() as first:
        assert await first.models() == ["asleep", "awake", "zero"]
        first.kill()
    async with town.gateway() as second, second.client() as client:
        assert await second.models() == ["asleep", "awake", "zero"]
        held = asyncio.create_task(tokens_of(client.ask("asleep")))
        assert await tokens_of(client.ask("awake")) == ANSWER
        await town.holds(second, 1)
        asleep.tell_load(ready=True)
        assert await held == ANSWER
