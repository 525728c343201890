"""Spans from a real gateway and a real worker at a real port; and collectors that are not there, or no good."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.faults.collector import Collector, Told, collecting
from tests.faults.gateway_process import ANSWER
from tests.faults.real_worker import real_worker
from tests.faults.town import Town
from tests.gateway.kit import tokens_of
from tests.ports import free_port

TRACE_ID, PARENT_ID = bytes(range(16)), bytes(range(8))
CALLED = (("traceparent", f"00-{TRACE_ID.hex()}-{PARENT_ID.hex()}-01"),)
TEXT = "text_completion {}/tiny"


def children(collector: Collector, parent: Told) -> list[Told]:
    """Return what happened within a span, in order."""
    found = [told for told in collector.told if told.span.parent_span_id == parent.span.span_id]
    return sorted(found, key=lambda told: told.span.start_time_unix_nano)


async def test_held_requests_give_the_whole_tree_from_the_gateway_to_the_worker(
    town: Town, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests wait for one worker to start: one within its client's trace, the other with a trace of its own."""
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        async with real_worker(tiny_model, tmp_path / "worker.log") as worker:
            await town.model("tiny", f"127.0.0.1:{worker.port}", is_asleep=True)
            async with town.gateway() as gateway, gateway.client() as client:
                calls = []
                for number, metadata in enumerate((CALLED, ())):
                    calls.append(client.ask("tiny", metadata=metadata, sampling={"max_tokens": 4, "ignore_eos": True}))
                    await town.holds(gateway, number + 1)
                await asyncio.to_thread(worker.start)
                answers = await asyncio.gather(*map(tokens_of, calls))
                assert [len(tokens) for tokens in answers] == [4, 4]
                await town.until(lambda: len(collector.told) == 13)

    first, second = sorted(
        collector.named(TEXT.format(town.namespace)), key=lambda told: told.span.trace_id != TRACE_ID
    )
    (wake,) = collector.named("wake")
    assert (first.span.trace_id, first.span.parent_span_id) == (TRACE_ID, PARENT_ID)
    assert (second.span.trace_id != TRACE_ID, second.span.parent_span_id) == (True, b"")
    assert sorted(told.name for told in children(collector, first)) == ["generate", "hold", "wake"]
    assert [told.name for told in children(collector, second)] == ["hold", "generate"]
    for hold in collector.named("hold"):
        assert [(link.trace_id, link.span_id) for link in hold.span.links] == [(TRACE_ID, wake.span.span_id)]
    for call in collector.named("generate"):
        parts = children(collector, call)
        assert [(told.service, told.name) for told in parts] == [
            ("dormouse-worker", name) for name in ("queue", "prefill", "decode")
        ]
        assert {told.span.trace_id for told in parts} == {call.span.trace_id}
    assert {told.service for told in (first, second, wake, *collector.named("hold"))} == {"dormouse-gateway"}


async def serves_and_ends(town: Town) -> None:
    """Have a gateway answer many more requests than its queue of spans holds, and end in order."""
    worker = await town.worker()
    await town.model("m", worker.address)
    async with town.gateway(lame_duck=0) as gateway, gateway.client() as client:
        await town.until(lambda: worker.watchers)
        answers = await asyncio.gather(*(tokens_of(client.ask("m")) for _ in range(200)))
        assert answers == [ANSWER] * 200
        gateway.terminate()
        assert await gateway.ended(90) == 0


@pytest.fixture
def short_queue(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Programs of this test keep 16 spans."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    return monkeypatch


async def test_nothing_happens_to_requests_while_no_collector_is_there(
    town: Town, short_queue: pytest.MonkeyPatch
) -> None:
    short_queue.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    await serves_and_ends(town)


async def test_nothing_happens_to_requests_while_the_collector_refuses(
    town: Town, short_queue: pytest.MonkeyPatch
) -> None:
    async with collecting(refuses=True) as collector:
        short_queue.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        await serves_and_ends(town)
        assert collector.num_calls > 0


async def test_nothing_happens_to_requests_while_the_collector_says_nothing(
    town: Town, short_queue: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        short_queue.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        await serves_and_ends(town)


async def test_a_gateway_whose_endpoint_is_no_url_does_not_start_and_names_the_variable(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
    gateway = town.start_gateway()
    assert await gateway.ended(90) == 2
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is 'collector:4317'; allowed is http://HOST:PORT" in gateway.program.tail()
