"""Our worker over gRPC and vLLM's own server over HTTP under the same load, in one run and in turns.

The rate is 70 % of what vLLM's server saturates at: the request throughput of a closed loop that keeps 64 requests
under way (16 with q05) and sends the next as soon as one is answered. That is short, and what its ramp and its tail
lose makes the rate a little lower than a longer loop would; a rising rate would take minutes for each step. vLLM runs
in every way that is asked for, and the one that saturates last is the one that races.

Sides that are not asked rest: vLLM's processes are stopped, our worker waits for requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console

from bench import neighbours
from bench.helpers import Helper, environment
from bench.models import SHAPES, ensure_model
from bench.options import OWN_PROCESS, Options
from bench.peer_env import KV_CACHE_GIB, find_peer, peer_variables
from bench.race import OURS, VLLM, cores_of
from bench.serve_client import Ask, Lap, Server
from bench.serve_figures import FRACTION, Found, Point, goodput_limits_ms
from bench.vllm_server import VllmServer, arguments
from bench.worker import free_port, ready_worker
from bench.workload import make_workload
from dormouse_cli.load.plan import arrivals

PLACES = {"tiny": 64, "small": 64, "q05": 16}  # requests under way in the closed loop
WAVES = {"tiny": 6, "small": 2, "q05": 2}  # so many times as many in all: seconds with tiny, a minute with small
WARM_UP_WAVES = 0.25
ARRIVALS_S = 75.0  # of a run at a rate; its number of requests follows: of too few, p99 is the unluckiest
FEWEST, MOST = 32, 256  # requests of such a run
UNLIMITED = 1000  # under way at a rate
FRACTIONS = (0.3, 0.5, 0.9)  # of the sweep, beside FRACTION
CONCURRENCIES = (1, 4, 16)  # of the sweep, beside the closed loop's
SWEEP_WAVES = 4


@dataclass(frozen=True, slots=True)
class Load:
    """How many requests, when, and how many under way."""

    rep: int  # which prompts: no two loads share one
    count: int
    rate_per_s: float = math.inf  # Poisson arrivals; inf = all are due at once
    max_concurrency: int = UNLIMITED

    def ask(self, name: str, side: Side) -> Ask:
        """Return it as the client takes it; the last prompt warms up."""
        drawn = make_workload("serve", vocab_size=SHAPES[name].vocab_size, rep=self.rep, count=self.count + 1).requests
        due_s = arrivals(self.count, self.rate_per_s, self.rep)
        limits = goodput_limits_ms(name)
        return Ask(side.kind, side.port, drawn[-1], drawn[:-1], tuple(due_s), self.max_concurrency, limits)


class Side(Protocol):
    """One server."""

    @property
    def kind(self) -> Server:
        """Return how it is spoken to."""
        ...

    @property
    def port(self) -> int:
        """Return where it listens."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Let it run within the block."""
        ...


@dataclass(frozen=True, slots=True)
class Ours:
    """Our worker: it rests by itself."""

    port: int
    kind: Server = "ours"

    def turn(self) -> AbstractContextManager[None]:
        """See `Side`."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Peer:
    """vLLM's server."""

    server: VllmServer
    kind: Server = "vLLM"

    @property
    def port(self) -> int:
        """Return where it listens."""
        return self.server.port

    def turn(self) -> AbstractContextManager[None]:
        """See `Side`."""
        return self.server.turn()


class Asker(Protocol):
    """The client's process."""

    def ask(self, question: Ask, kind: type[Lap]) -> Lap:
        """Return what came of the load. Raises RuntimeError if a request failed."""
        ...


class ServeRace:
    """All sides, started with one model."""

    def __init__(self, name: str, client: Asker, sides: Mapping[str, Side], options: Options, console: Console) -> None:
        self.name = name
        self._client = client
        self._sides = sides
        self._options = options
        self._console = console
        self._num_loads = 0

    def __repr__(self) -> str:
        return f"ServeRace({self.name}: {', '.join(self._sides)})"

    def run(self) -> Found | None:
        """Warm up and saturate every side, race at a share of vLLM's rate, sweep if asked to; None without vLLM."""
        everybody = list(self._sides)
        self._together(self._closed_loop(WARM_UP_WAVES), everybody, "warm-up")
        saturated = self._together(self._closed_loop(WAVES[self.name]), everybody, "saturated")
        way = best_way(saturated)
        if way is None:
            return None
        rate_per_s = saturated[way].figures["request_throughput"]
        rounds = [
            self._together(self._at(FRACTION * rate_per_s), [OURS, way], str(rep))
            for rep in range(1, self._options.reps + 1)
        ]
        points = tuple(self._sweep(rate_per_s, [OURS, way])) if self._options.picture else ()
        return Found(self.name, way, PLACES[self.name], saturated, tuple(rounds), points)

    def _sweep(self, rate_per_s: float, sides: Sequence[str]) -> Iterator[Point]:
        for places in CONCURRENCIES:
            load = self._load(SWEEP_WAVES * places, max_concurrency=places)
            yield Point("concurrency", places, self._together(load, sides, f"{places} under way"))
        for fraction in FRACTIONS:
            load = self._at(fraction * rate_per_s)
            yield Point("fraction", fraction, self._together(load, sides, f"{fraction:.0%}"))

    def _closed_loop(self, waves: float) -> Load:
        places = PLACES[self.name]
        return self._load(round(waves * places), max_concurrency=places)

    def _at(self, rate_per_s: float) -> Load:
        return self._load(count_at(rate_per_s), rate_per_s=rate_per_s)

    def _load(self, count: int, *, rate_per_s: float = math.inf, max_concurrency: int = UNLIMITED) -> Load:
        load = Load(self._num_loads, self._options.count or count, rate_per_s, max_concurrency)
        self._num_loads += 1
        return load

    def _together(self, load: Load, sides: Sequence[str], title: str) -> dict[str, Lap]:
        """Let the sides take turns under one load."""
        return {side: self._lap(load, side, title) for side in sides}

    def _lap(self, load: Load, side: str, title: str) -> Lap:
        before = neighbours.read()
        with self._sides[side].turn():
            lap = self._client.ask(load.ask(self.name, self._sides[side]), Lap)
        others = before.cores_of_others(neighbours.read())
        words = f"{describe(lap)}; others took {others:.2f} cores"
        self._console.print(f"  {self.name} {title}, {side}: {words}", highlight=False)
        return lap


def count_at(rate_per_s: float) -> int:
    """Return how many requests make a run at a rate."""
    return min(MOST, max(FEWEST, round(ARRIVALS_S * rate_per_s)))


def best_way(saturated: Mapping[str, Lap]) -> str | None:
    """Return vLLM's side that saturates last; None if there is none."""
    ways = [side for side in saturated if side.startswith(VLLM)]
    return max(ways, key=lambda side: saturated[side].figures["request_throughput"], default=None)


def describe(lap: Lap) -> str:
    """Return what came of a load in words."""
    told = lap.figures
    rates = f"{told['request_throughput']:.2f} requests/s, {told['output_throughput']:,.0f} tokens/s"
    waits = ", ".join(
        f"{metric.upper()} {told[f'p50_{metric}_ms']:.1f} and {told[f'p99_{metric}_ms']:.1f} ms"
        for metric in ("ttft", "itl")
    )
    return f"{rates}, {waits} (p50 and p99); client late {told['p99_late_ms']:.1f} ms"


def dtypes_of(ways: Iterable[str]) -> list[str]:
    """Return the types in which vLLM is to compute: its server's engine core is in a process of its own anyway."""
    return list(dict.fromkeys(way.removesuffix(OWN_PROCESS) for way in ways))


def measure_serve(name: str, options: Options, console: Console) -> Found | None:
    """Start all sides with a bfloat16 model and race; None, which is said, where vLLM is not there."""
    if (python := find_peer(console)) is None:
        return None
    model = ensure_model(name, "bf16")
    variables = peer_variables(cores_of(options), environment(), own_process=True)
    flags = ("--threads", str(options.threads), "--kv-cache-memory", f"{KV_CACHE_GIB}Gi")
    with ExitStack() as stack:
        servers: dict[str, VllmServer] = {}
        for way in dtypes_of(options.ways):
            port = free_port()
            server = VllmServer([str(python), *arguments(str(model), way, port)], port, variables)
            servers[f"{VLLM} {way}"] = stack.enter_context(server)
        client = stack.enter_context(Helper("bench.serve_client"))
        for server in servers.values():
            server.wait_ready()
            server.stop()
        worker = stack.enter_context(ready_worker(model, flags=flags, max_blocks=None))
        sides: dict[str, Side] = {OURS: Ours(worker.port), **{side: Peer(one) for side, one in servers.items()}}
        return ServeRace(name, client, sides, options, console).run()
