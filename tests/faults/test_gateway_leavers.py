"""Clients that go away, or do not take what they asked for. F28 of the fault matrix."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.testing import TalkingWorker
from tests.faults import metrics
from tests.faults.gateway_process import ANSWER, GatewayProcess
from tests.faults.raw_http2 import cut
from tests.faults.town import Town
from tests.gateway.kit import tokens_of
from tests.integration.conftest import Worker
from tests.integration.crawling import CRAWLING, crawling, own_copy

SOON_S = 60.0  # one second is meant; as a deadline it has to hold on a machine that does much else
ONE = {"device": "cpu", "maxNumSeqs": 1}
_MIB = 1 << 20


class Leaver(Protocol):
    """A request, and a way to be gone."""

    async def begun(self) -> None:
        """Wait for the first words."""

    async def leave(self) -> None:
        """Go."""


class GrpcLeaver:
    """Closes its connection."""

    def __init__(self, gateway: GatewayProcess, model: str) -> None:
        self._client = gateway.client()
        self._call = self._client.ask(model)

    async def begun(self) -> None:
        await self._call.read()

    async def leave(self) -> None:
        await self._client.channel.close(None)


class HttpLeaver:
    """Resets its connection."""

    def __init__(self, gateway: GatewayProcess, model: str) -> None:
        self._gateway = gateway
        self._body = json.dumps({"model": model, "prompt": "a", "stream": True}).encode()
        self._opened = asyncio.create_task(self._open())

    async def begun(self) -> None:
        reader, _ = await self._opened
        await reader.readuntil(b"data: ")

    async def leave(self) -> None:
        _, writer = await self._opened
        await cut(writer)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.http_port)
        head = "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(self._body)}\r\n\r\n".encode() + self._body)
        return reader, writer


@pytest.mark.parametrize("door", [GrpcLeaver, HttpLeaver])
async def test_who_goes_while_queued_waking_or_streaming_is_out_at_once_and_the_engine_learns_it(
    town: Town, door: Any
) -> None:
    worker, sleeper = await town.worker(), await town.worker()
    worker.is_gated = True
    sleeper.tell_load(ready=False)
    await town.model("busy", worker.address, engine=ONE)
    await town.model("sleeper", sleeper.address, is_asleep=True)
    async with town.gateway(worker_queue=0) as gateway:
        streaming: Leaver = door(gateway, "busy")
        await streaming.begun()
        queued: Leaver = door(gateway, "busy")
        await town.holds(gateway, 1)
        waking: Leaver = door(gateway, "sleeper")
        await town.holds(gateway, 2)
        await queued.leave()
        await town.holds(gateway, 1, timeout_s=SOON_S)
        await waking.leave()
        await town.holds(gateway, 0, timeout_s=SOON_S)
        assert not worker.cancelled.is_set()
        await streaming.leave()
        await town.until(worker.cancelled.is_set, timeout_s=SOON_S)

        async def is_free() -> bool:
            return await gateway.metric("dormouse_gateway_in_flight") == 0

        await town.eventually(is_free, timeout_s=SOON_S)
        async with gateway.client() as client:
            worker.gate.set()
            assert await tokens_of(client.ask("busy")) == ANSWER
        assert len(worker.seen) == 2, "who left the queue reached no worker"
        assert sleeper.seen == []


class Chatterbox(TalkingWorker):
    """Says 4 KiB over and over, and counts how often it could."""

    num_said = 0

    async def Generate(  # noqa: N802  # the name on the wire
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        async for message in super().Generate(request, context):
            self.num_said += 1
            yield message


@pytest.mark.slow
async def test_who_reads_nothing_of_his_stream_slows_his_worker_down_and_fills_no_memory(town: Town) -> None:
    """Of 400 MB no more than some MiB leave the worker, and nobody else waits for that."""
    box, worker = await town.worker(Chatterbox), await town.worker()
    box.tokens = (8,) * 100_000
    await town.model("endless", box.address)
    await town.model("busy", worker.address)
    assert isinstance(box, Chatterbox)
    async with town.gateway() as gateway, gateway.client() as client, gateway.client() as other:
        before_bytes = gateway.memory_bytes
        calls = [client.ask("endless") for _ in range(4)]
        await asyncio.gather(*(call.read() for call in calls))
        before = -1
        while before != (before := box.num_said):  # it is still saying something
            for _ in range(20):
                assert await tokens_of(other.ask("busy")) == ANSWER
        assert box.num_said * 4096 < 64 * _MIB
        assert gateway.memory_bytes - before_bytes < 96 * _MIB
        for call in calls:
            call.cancel()

        async def is_free() -> bool:
            return await gateway.metric("dormouse_gateway_in_flight") == 0

        await town.eventually(is_free, timeout_s=SOON_S)


@pytest.mark.slow
async def test_a_real_engine_stops_and_frees_its_blocks_when_its_clients_go(
    town: Town, tiny_model: Path, tmp_path: Path
) -> None:
    """Eight streams of 400 tokens each fill its batch; their clients close the connection after the first tokens."""
    model = own_copy(tiny_model, tmp_path / "model")
    with (tmp_path / "worker.log").open("wb") as log, closing(Worker(model, log, *CRAWLING)) as worker:
        await asyncio.to_thread(worker.start)
        await town.model("tiny", f"127.0.0.1:{worker.port}")

        async def figure(name: str) -> float:
            return await metrics.read(worker.metrics_port, name)

        async def is_idle() -> bool:
            return await figure("vllm:num_requests_running") == 0 == await figure("vllm:kv_cache_usage_perc")

        async with town.gateway() as gateway:
            client = gateway.client()
            with crawling(model):
                calls = [client.ask("tiny", sampling={"max_tokens": 400, "ignore_eos": True}) for _ in range(8)]
                await asyncio.gather(*(call.read() for call in calls))
                await client.channel.close(None)
                await town.eventually(is_idle, timeout_s=SOON_S)
            assert 8 <= await figure("vllm:generation_tokens_total") < 8 * 400, "it stopped before the end"
