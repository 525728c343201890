"""What it costs to stay with one's own gateway: Envoy and our picker beside our gateway alone.

    added      1-token completions at 200 a second, turn about through our gateway and through Envoy, which asks it
    sleep      requests that come while the worker sleeps, and while it wakes: lost ones
    roll-out   two gateways; the worker is replaced by a new one under traffic, thrice: lost ones. The pod goes as by an
               operator: its gate is shut, it is drained and deleted, and its processes get SIGTERM in their order
    kill       two gateways, one is killed with SIGKILL under traffic, the pool fails open: lost ones

Gateway, Envoy, the worker (the front as it is over an engine that computes nothing), the HTTP API beside it and the
client are a process each. Kubernetes is in memory. Other rows of the file stay as they are.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import uvloop
from rich.console import Console

from bench.envoy.config import Wish
from bench.envoy.process import running_envoy
from bench.helpers import environment
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtMost, Row
from bench.worker import Worker, free_port
from dormouse_api import testing_tickets
from dormouse_api.testing_tickets import POD_UID
from dormouse_cli.load.figures import percentile

MODEL = "tiny"  # for its tokenizer
RATE_PER_S = 200.0
TURN_REQUESTS, NUM_TURNS = 200, 8  # of each kind, for a repetition: a second each
NUM_NAPS, NAP_REQUESTS = 3, 50
NUM_ROLL_OUTS, ROLL_OUT_RATE_PER_S = 3, 50.0  # workers that start take the processors
LOOK_S = 0.02
KILL_REQUESTS = 400  # at the same rate; the kill comes in their middle
BODY = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Gate:
    """A gateway process."""

    process: subprocess.Popen[bytes]
    http_port: int
    picker_port: int

    def tell(self, line: str) -> None:
        """Have it take a worker, or lose it; a new one serves when this returns."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        if line[0] == "+" and not self.process.stdout.readline():
            raise RuntimeError("the gateway ended: see its words above")


@dataclass(frozen=True, slots=True)
class Place:
    """A worker that serves, and the HTTP API beside it."""

    worker: Worker
    beside: subprocess.Popen[bytes]
    http_port: int
    uid: str

    def __str__(self) -> str:
        """Return it as gateways are told."""
        return f"{self.worker.port}:{self.http_port}:{self.uid}"

    def end(self) -> None:
        """End it as a kubelet does: the worker, then what was started before it."""
        self.worker.close()
        self.beside.terminate()
        self.beside.wait()


Start = Callable[[str], Place]  # a worker of this pod's UID, which goes with the measurement at the latest


@dataclass(slots=True)
class Sent:
    """What became of requests."""

    times_ms: list[float] = field(default_factory=list)
    lost: int = 0


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))

        def start(uid: str) -> Place:
            return stack.enter_context(_worker(folder, uid))

        place = start(POD_UID)
        gates = [stack.enter_context(_gate(place)) for _ in range(2)]
        return uvloop.run(_measure(start, place, gates, folder, options, console))


async def _measure(
    start: Start, place: Place, gates: Sequence[Gate], folder: Path, options: Options, console: Console
) -> list[Row]:
    pickers = [gate.picker_port for gate in gates]
    alone = Wish(pickers=[gates[0].picker_port])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async with running_envoy(alone, folder) as envoy:
            ours = f"http://127.0.0.1:{gates[0].http_port}"
            own, through = await _added(session, ours, envoy, options, console)
            naps = await _naps(session, envoy, place.worker)
        async with running_envoy(Wish(pickers=pickers, message_timeout_s=30.0), folder) as envoy:
            place, rolled = await _roll_out(session, envoy, gates, place, start)
        wish = Wish(pickers=pickers, fallback=[place.http_port], fails_open=True, message_timeout_s=30.0)
        async with running_envoy(wish, folder) as envoy:
            killed = await _kill(session, envoy, gates)
    console.print(f"lost: {naps.lost} over sleeps and wakes, {rolled.lost} over roll-outs, {killed.lost} over a kill")
    return [*_added_rows(own.times_ms, through.times_ms), *_lost_rows(naps, rolled, killed)]


def _added_rows(own_ms: Sequence[float], through_ms: Sequence[float]) -> Iterator[Row]:
    for percent in (50, 95):
        pair = percentile(through_ms, percent), percentile(own_ms, percent)
        yield Row(
            f"Envoy + our picker beside our gateway alone, {RATE_PER_S:g} rps, p{percent}", pair[0], "ms", pair[1]
        )
    added_ms = percentile(through_ms, 95) - percentile(own_ms, 95)
    yield Row(f"Envoy + our picker: added p95, {RATE_PER_S:g} rps", added_ms, "ms", goal=AtMost(4))


def _lost_rows(naps: Sent, rolled: Sent, killed: Sent) -> Iterator[Row]:
    for what, sent in (
        (f"over {NUM_NAPS} sleeps and wakes", naps),
        (f"over {NUM_ROLL_OUTS} roll-outs", rolled),
        ("while one of two pickers is killed, pool fails open", killed),
    ):
        count = "" if sent is rolled else f" of {len(sent.times_ms)}"  # as many as there was time for
        yield Row(f"Envoy + our picker: lost{count} {what}", sent.lost, "requests", goal=AtMost(0))


async def _added(
    session: aiohttp.ClientSession, ours: str, envoy: str, options: Options, console: Console
) -> tuple[Sent, Sent]:
    """Return what both ways took, turn about."""
    own, through = Sent(), Sent()
    count = options.count or TURN_REQUESTS
    for url in (ours, envoy):
        await _send(session, url, count, Sent())
    for number in range(NUM_TURNS * options.reps):
        for url, sent in ((ours, own), (envoy, through)) if number % 2 else ((envoy, through), (ours, own)):
            await _send(session, url, count, sent)
    words = ", ".join(f"{percentile(sent.times_ms, 95):.2f} ms" for sent in (own, through))
    console.print(f"p95 alone and with Envoy: {words}; lost {own.lost}, {through.lost}")
    if own.lost or through.lost:
        raise RuntimeError(f"requests were lost without any fault: {own.lost}, {through.lost}")
    return own, through


async def _naps(session: aiohttp.ClientSession, envoy: str, worker: Worker) -> Sent:
    """Send while it sleeps, and when it has woken."""
    sent = Sent()
    for _ in range(NUM_NAPS):
        await asyncio.to_thread(worker.sleep, 1)
        asked = asyncio.create_task(_send(session, envoy, NAP_REQUESTS, sent))
        await asyncio.sleep(NAP_REQUESTS / RATE_PER_S / 2)
        await asyncio.to_thread(worker.wake_up)
        await asked
        await _send(session, envoy, NAP_REQUESTS, sent)
    return sent


async def _roll_out(
    session: aiohttp.ClientSession, envoy: str, gates: Sequence[Gate], place: Place, start: Start
) -> tuple[Place, Sent]:
    """Send all the time, while a new worker takes over, and another one, and another one; return the last."""
    sent, is_over = Sent(), asyncio.Event()

    async def go_on() -> None:
        while not is_over.is_set():
            await _send(session, envoy, int(ROLL_OUT_RATE_PER_S), sent, ROLL_OUT_RATE_PER_S)

    asked = asyncio.create_task(go_on())
    for number in range(NUM_ROLL_OUTS):
        place = await asyncio.to_thread(_replace, gates, place, start, f"next-{number}")
    is_over.set()
    await asked
    return place, sent


def _replace(gates: Sequence[Gate], old: Place, start: Start, uid: str) -> Place:
    """Have another worker serve in place of this one, and return it."""
    new = start(uid)
    _tell(gates, f"+{new}")
    _tell(gates, f"-{old.uid}")
    old.worker.drain()
    _tell(gates, f"x{old.uid}")
    old.end()
    return new


def _tell(gates: Sequence[Gate], line: str) -> None:
    for gate in gates:
        gate.tell(line)


async def _kill(session: aiohttp.ClientSession, envoy: str, gates: Sequence[Gate]) -> Sent:
    sent = Sent()
    asked = asyncio.create_task(_send(session, envoy, KILL_REQUESTS, sent))
    await asyncio.sleep(KILL_REQUESTS / RATE_PER_S / 2)
    gates[0].process.kill()
    await asked
    return sent


async def _send(
    session: aiohttp.ClientSession, url: str, count: int, sent: Sent, rate_per_s: float = RATE_PER_S
) -> None:
    """Send so many, evenly."""
    begin_s = time.monotonic()
    await asyncio.gather(*(_one(session, url, begin_s + number / rate_per_s, sent) for number in range(count)))


async def _one(session: aiohttp.ClientSession, url: str, at_s: float, sent: Sent) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
    begun_s = time.monotonic()
    try:
        async with session.post(f"{url}/v1/completions", json=BODY) as response:
            await response.read()
            is_lost = response.status != 200
    except aiohttp.ClientError:
        is_lost = True
    sent.times_ms.append(1e3 * (time.monotonic() - begun_s))
    sent.lost += is_lost


@contextmanager
def _worker(folder: Path, uid: str) -> Iterator[Place]:
    """A worker that serves, and the HTTP API beside it."""
    local, http_port = folder / f"{uid}.sock", free_port()
    flags = ("--served-model-name", MODEL, "--local-socket", str(local))
    stand_in = ("-m", "bench.stand_in", "--step-seconds", "0")
    worker = Worker(ensure_model(MODEL), program=stand_in, flags=flags, pod_uid=uid)
    try:
        worker.open()
        beside = [sys.executable, "-m", "dormouse_gateway.beside", f"--worker={local}", "--port", str(http_port)]
        env = {**environment(), **testing_tickets.environment(uid)}
        with _ended(subprocess.Popen([*beside, "--fail-open", "--", MODEL], env=env)) as process:
            _wait_for(http_port)
            yield Place(worker, process, http_port, uid)
    finally:
        worker.close()


def _wait_for(port: int) -> None:
    """Return once somebody listens there, as the kubelet starts a worker behind its HTTP API."""
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(LOOK_S)


@contextmanager
def _gate(place: Place) -> Iterator[Gate]:
    """A gateway before the worker."""
    command = [sys.executable, "-m", "bench.envoy.picking_door", MODEL, str(place)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    with _ended(made) as process:
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        if len(ports) != 2:
            raise RuntimeError("the gateway ended: see its words above")
        yield Gate(process, int(ports[0]), int(ports[1]))


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main("platform", __doc__, measure)
