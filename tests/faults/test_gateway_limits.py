"""The machine around a gateway misbehaves: the clock jumps, the disk is full, files are few, no name is found. F36."""

from __future__ import annotations

import asyncio
import struct
import subprocess
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from tests.faults import raw_http2 as raw
from tests.faults.gateway_process import ANSWER
from tests.faults.town import Town
from tests.gateway.kit import tokens_of
from tests.name_service import NameService

HOUR_S = 3600.0
FEW = 256


class Clock:
    """The wall clock of one program, which can jump."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shift"
        self._library = folder / "clock_shift.so"
        source = Path(__file__).with_name("clock_shift.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True)
        self.jump(0.0)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return what starts a program with this clock."""
        return ("env", f"LD_PRELOAD={self._library}", f"CLOCK_SHIFT_FILE={self._file}")

    def jump(self, shift_s: float) -> None:
        """Be off by so many seconds from now on. Written in place: the program has the file mapped."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("d", shift_s))


@pytest.mark.slow  # needs a C compiler
@pytest.mark.parametrize("shift_s", [HOUR_S, -HOUR_S])
async def test_a_clock_that_jumps_by_an_hour_ends_no_stream_no_wait_and_no_deadline(
    town: Town, tmp_path: Path, shift_s: float
) -> None:
    """F36: a stream runs, one request waits, one comes after the jump, for which the model sleeps anew."""
    clock, worker, sleeper = Clock(tmp_path), await town.worker(), await town.worker()
    worker.is_gated = True
    sleeper.tell_load(ready=False)
    await town.model("m", worker.address)
    await town.model("sleeper", sleeper.address, is_asleep=True)
    async with town.gateway(prefix=clock.prefix) as gateway, gateway.client() as client:
        streams = [client.ask("m"), client.ask("m", timeout=None)]
        assert [(await stream.read()).token_ids[0] for stream in streams] == [1, 1]
        held = asyncio.create_task(tokens_of(client.ask("sleeper")))
        await town.holds(gateway, 1)
        await town.holds(gateway, 1)
        clock.jump(shift_s)
        late = asyncio.create_task(tokens_of(client.ask("sleeper")))
        await town.holds(gateway, 2)
        url, body = f"http://127.0.0.1:{gateway.http_port}/v1/completions", {"model": "m", "prompt": "a"}
        async with aiohttp.ClientSession() as session:
            worker.gate.set()
            async with session.post(url, json=body) as answer:
                told = datetime.fromtimestamp((await answer.json())["created"], UTC)
        assert abs(told - datetime.now(UTC) - timedelta(seconds=shift_s)) < timedelta(minutes=5), "the clock did jump"
        assert await asyncio.gather(*(tokens_of(stream) for stream in streams)) == [ANSWER[1:]] * 2
        timeouts_s = sorted(seen.timeout_s or 0 for seen in worker.seen)
        assert timeouts_s == pytest.approx([60, 600, 600], abs=30), "the last one is of after the jump"
        sleeper.tell_load(ready=True)
        assert await held == await late == ANSWER


async def test_a_full_disk_stops_neither_answers_nor_wakes(town: Town) -> None:
    """F36: the gateway cannot write a single byte to any file, its own log included."""
    worker, sleeper = await town.worker(), await town.worker()
    sleeper.tell_load(ready=False)
    await town.model("m", worker.address)
    await town.model("sleeper", sleeper.address, is_asleep=True)
    async with town.gateway(prefix=("prlimit", "--fsize=0"), lame_duck=0) as gateway, gateway.client() as client:
        url = f"http://127.0.0.1:{gateway.http_port}/v1/completions"
        held = asyncio.create_task(tokens_of(client.ask("sleeper")))
        assert await tokens_of(client.ask("m", text="x" * (1 << 19))) == ANSWER
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json={"model": "m", "prompt": "x" * 500_000}) as answer,
        ):
            assert answer.status == 200
        await town.holds(gateway, 1)
        sleeper.tell_load(ready=True)
        assert await held == ANSWER
        assert gateway.program.log.stat().st_size == 0, "it had nowhere to write to"
        gateway.terminate()
        assert await gateway.ended(60) == 0


@pytest.mark.parametrize("door", [pytest.param("port", marks=pytest.mark.slow), "http_port"])
async def test_with_few_file_descriptors_more_connections_are_refused_and_the_others_served(
    town: Town, door: str
) -> None:
    """F36: 300 connections that say nothing, where the gateway may open 256 files in all; then a worker comes."""
    worker, newcomer = await town.worker(), await town.worker()
    await town.model("m", worker.address)
    await town.model("n", is_asleep=True)
    limit = ("prlimit", f"--nofile={FEW}:{FEW}")
    async with town.gateway(prefix=limit, http_timeout=600) as gateway, gateway.client() as client:
        assert await tokens_of(client.ask("m")) == ANSWER
        async with AsyncExitStack() as silent:
            for _ in range(FEW + 50):
                await silent.enter_async_context(raw.connected(getattr(gateway, door), b""))
            for _ in range(20):
                assert await tokens_of(client.ask("m")) == ANSWER
            held = asyncio.create_task(tokens_of(client.ask("n")))
            await town.holds(gateway, 1)
            await town.add_pod("n-0", "n", newcomer.address)
            assert await held == ANSWER, "clients leave files for everything else"
        async with gateway.client() as another:
            assert await tokens_of(another.ask("m")) == ANSWER
        assert await gateway.models() == ["m", "n"]
        assert gateway.is_alive


async def test_without_a_name_service_what_is_awake_is_served_and_what_sleeps_is_woken(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: workers and the API server are known by address; only spans have nowhere to go."""
    worker, sleeper = await town.worker(), await town.worker()
    sleeper.tell_load(ready=False)
    await town.model("m", worker.address)
    await town.model("sleeper", sleeper.address, is_asleep=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.observability.svc:4317")
    with NameService.running(tmp_path) as names:
        async with town.gateway(prefix=names.prefix, lame_duck=0) as gateway, gateway.client() as client:
            held = asyncio.create_task(tokens_of(client.ask("sleeper")))
            await town.holds(gateway, 1)
            while not names.num_asked("collector"):
                assert await tokens_of(client.ask("m")) == ANSWER
            sleeper.tell_load(ready=True)
            assert await held == ANSWER
            gateway.terminate()
            assert await gateway.ended(60) == 0
