"""A broken network between a gateway and its workers, or the API server. F29 and F3 of the fault matrix."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from dormouse_gateway.testing.workers import FakeWorker
from tests.faults.gateway_process import ANSWER, Client, GatewayProcess
from tests.faults.loss import Loss
from tests.faults.town import Town
from tests.faults.wire import Wire
from tests.gateway.kit import tokens_of

NOTICED_S = 20.0  # after this time without a sign of life, a connection is given up
SPARE_S = 6.0  # for the rest of the way, on a machine that does much else


async def migrated(gateway: GatewayProcess) -> int:
    """Return how many streams went on elsewhere to their end."""
    return int(await gateway.metric("dormouse_migrated_total", outcome="done"))


def num_seen(*workers: FakeWorker) -> Counter[str]:
    """Return how often each request reached a worker."""
    return Counter(seen.request.request_id for worker in workers for seen in worker.seen if seen.method == "Generate")


async def begin_on(client: Client, far: FakeWorker, near: FakeWorker, count: int) -> tuple[list[Any], list[Any]]:
    """Begin streams on two workers alike; return those on the far one, then the others. Each has said one token."""
    calls = {f"s{n}": client.ask("m", f"s{n}") for n in range(count)}
    assert [(await call.read()).token_ids[0] for call in calls.values()] == [1] * count
    on_far = {seen.request.request_id for seen in far.seen}
    assert 0 < len(on_far) < count
    assert len(near.seen) == count - len(on_far)
    apart: tuple[list[Any], list[Any]] = ([], [])
    for name, call in calls.items():
        apart[name not in on_far].append(call)
    return apart


@pytest.mark.slow
async def test_a_slow_network_makes_nothing_but_time(town: Town) -> None:
    """F29, latency of a second with jitter, in each direction: every answer is right, and every request ran once."""
    worker = await town.worker()
    async with town.network(worker.address) as network:
        await town.model("m", f"127.0.0.1:{network.port}")
        async with town.gateway() as gateway, gateway.client() as client:
            await town.until(lambda: worker.watchers)
            await network.delay(500, jitter_ms=100)
            answers = await asyncio.gather(*(tokens_of(client.ask("m", f"{n}")) for n in range(50)))
            assert answers == [ANSWER] * 50
            assert set(num_seen(worker).values()) == {1}


@pytest.mark.slow
async def test_a_network_that_loses_packets_makes_nothing_but_time(town: Town) -> None:
    """F29, 5 % loss in each direction: every answer is right, and every request ran once."""
    worker = await town.worker()
    await town.model("m", worker.address)
    async with town.gateway() as gateway, gateway.client() as client:
        await town.until(lambda: worker.watchers)
        with Loss.running(worker.port, percent=5) as loss:
            num_asked = 0
            while loss.num_lost < 20:
                answers = await asyncio.gather(*(tokens_of(client.ask("m", f"{num_asked + n}")) for n in range(50)))
                assert answers == [ANSWER] * 50
                num_asked += 50
        assert set(num_seen(worker).values()) == {1}
        assert len(num_seen(worker)) == num_asked


async def test_where_connections_are_reset_what_had_not_begun_is_asked_elsewhere_and_the_rest_goes_on_elsewhere(
    town: Town,
) -> None:
    """F29, resets: clients see every token once, in order, and no error."""
    far, near = await town.worker(FakeWorker), await town.worker(FakeWorker)
    far.is_gated = near.is_gated = True
    async with town.network(far.address) as network:
        await town.model("m", f"127.0.0.1:{network.port}", near.address)
        async with town.gateway() as gateway, gateway.client() as client:
            await town.until(lambda: far.watchers and near.watchers)
            on_far, on_near = await begin_on(client, far, near, 20)
            await network.reset()
            fresh = [asyncio.create_task(tokens_of(client.ask("m", f"f{n}"))) for n in range(20)]
            await town.until(lambda: len(near.seen) == 20 + 20)
            near.gate.set()
            assert await asyncio.gather(*fresh) == [ANSWER] * 20
            assert await asyncio.gather(*(tokens_of(call) for call in [*on_far, *on_near])) == [ANSWER[1:]] * 20
            assert await migrated(gateway) == len(on_far)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [("upstream",), ("downstream",), ("upstream", "downstream")])
async def test_a_network_that_falls_silent_is_noticed_and_the_streams_go_on_elsewhere(
    town: Town, lost: tuple[str, ...]
) -> None:
    """F29, half-open and blackhole: nothing is closed, nothing arrives; 20 seconds at most until it is noticed."""
    far, near = await town.worker(FakeWorker), await town.worker(FakeWorker)
    far.is_gated = near.is_gated = True
    async with town.network(far.address) as network:
        await town.model("m", f"127.0.0.1:{network.port}", near.address)
        async with town.gateway() as gateway, gateway.client() as client:
            await town.until(lambda: far.watchers and near.watchers)
            on_far, on_near = await begin_on(client, far, near, 20)
            near.gate.set()
            assert await asyncio.gather(*(tokens_of(call) for call in on_near)) == [ANSWER[1:]] * len(on_near)
            for stream in lost:
                await network.lose(stream)
            fresh = [asyncio.create_task(tokens_of(client.ask("m", f"f{n}"))) for n in range(20)]
            async with asyncio.timeout(NOTICED_S + SPARE_S):
                assert await asyncio.gather(*(tokens_of(call) for call in on_far)) == [ANSWER[1:]] * len(on_far)
                assert await asyncio.gather(*fresh) == [ANSWER] * 20
            assert await migrated(gateway) == len(on_far)


@pytest.mark.slow
async def test_signs_of_life_are_asked_for_however_long_nothing_was_said(town: Town) -> None:
    """By itself gRPC asks twice and then once in minutes; a worker's stream of its load may say nothing for hours."""
    far, near = await town.worker(FakeWorker), await town.worker(FakeWorker)
    far.is_gated = True
    async with Wire(far.port).connected() as wire:
        await town.model("m", f"127.0.0.1:{wire.port}")
        async with town.gateway() as gateway, gateway.client() as client:
            await town.until(lambda: far.watchers)
            stream = client.ask("m", "s", timeout=200)
            await stream.read()
            before = wire.num_pings
            await town.until(lambda: wire.num_pings >= before + 4, timeout_s=4 * NOTICED_S)
            await town.add_pod("m-near", "m", near.address)
            await town.until(lambda: near.watchers)
            wire.is_cut = True
            async with asyncio.timeout(NOTICED_S + SPARE_S):
                assert await tokens_of(stream) == ANSWER[1:]
            assert await migrated(gateway) == 1


async def outlast_api_server(town: Town, outage_s: float) -> None:
    """Ask models that are awake all through an outage, and one that sleeps, which is woken once it is over."""
    awake, asleep = await town.worker(), await town.worker()
    await town.model("awake", awake.address)
    await town.model("asleep", asleep.address, is_asleep=True)
    asleep.tell_load(ready=False)
    async with town.network(f"127.0.0.1:{town.plane.port}") as network:
        url = f"https://127.0.0.1:{network.port}"
        async with town.gateway(api_url=url) as gateway, gateway.client() as client:
            await network.refuse()
            held = asyncio.create_task(tokens_of(client.ask("asleep", timeout=200)))
            await town.holds(gateway, 1)
            until_s = time.monotonic() + outage_s
            while time.monotonic() < until_s:
                assert await tokens_of(client.ask("awake")) == ANSWER
            assert await gateway.is_ready()
            assert await gateway.models() == ["asleep", "awake"]
            await network.accept()
            asleep.tell_load(ready=True)
            assert await held == ANSWER
            assert gateway.is_alive


async def test_without_the_api_server_what_is_awake_is_served_and_a_wake_waits_for_it(town: Town) -> None:
    await outlast_api_server(town, 1.0)


@pytest.mark.slow
async def test_a_minute_without_the_api_server_costs_no_request(town: Town) -> None:
    await outlast_api_server(town, 60.0)


@pytest.mark.slow
async def test_a_gateway_that_starts_without_the_api_server_says_so_until_it_is_there(town: Town) -> None:
    worker = await town.worker()
    await town.model("m", worker.address)
    async with town.network(f"127.0.0.1:{town.plane.port}") as network:
        await network.refuse()
        gateway = town.start_gateway(api_url=f"https://127.0.0.1:{network.port}")
        async with gateway.client() as client:

            async def tells() -> str:
                call = client.ask("m", wait_for_ready=True)
                return str(await call.details()) if await call.code() else ""

            assert await town.eventually(tells) == "this gateway is still learning the models"
            assert not await gateway.is_ready()
            await network.accept()
            await town.eventually(gateway.is_ready)
            assert await tokens_of(client.ask("m")) == ANSWER
