"""Engines on the same model and the same requests, in one run and in turns: what disturbs one disturbs all.

Ours runs in a process without front or gRPC, as vLLM is measured. vLLM runs in every way that is asked for, each a side
of its own, and the best counts. Sides that are not asked are stopped: see `Helper`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

from rich.console import Console

from bench import neighbours
from bench.contest import Figure
from bench.contest import describe as describe_replies
from bench.helpers import Helper, Job, environment
from bench.models import SHAPES, ensure_model
from bench.options import OWN_PROCESS, Options
from bench.peer_env import find_peer, peer_variables
from bench.replies import Reply
from bench.workload import Request, make_workload

OURS, TRANSFORMERS, VLLM = "ours", "transformers", "vLLM"
SMALL_COUNTS = {"q05": {"W1": 16, "W3": 16, "W4": 16}}  # requests where the workload's own would take too long
TRANSFORMERS_WARM_UP = 4  # requests
TRANSFORMERS_REPS = 1  # it is the slowest by far: more would be most of the time, and change no verdict


@dataclass(frozen=True, slots=True)
class Laps:
    """What the sides answered in the measured repetitions, by side; ours is always there."""

    replies: Mapping[str, Sequence[list[Reply]]]
    limits: Sequence[float] = ()  # what the machine usually did just before each repetition; empty = not measured

    @property
    def ways(self) -> list[str]:
        """Return the sides that are vLLM's ways."""
        return [side for side in self.replies if side.startswith(VLLM)]

    def median(self, side: str, figure: Figure) -> float:
        """Return a figure's median over a side's repetitions."""
        return median(map(figure, self.replies[side]))

    def share_of_limit(self, side: str, rate: Figure) -> float:
        """Return a side's median share of what the machine usually did in the same repetition, 0 to 100.

        Raises ValueError if it was not measured, or the side left out repetitions.
        """
        shares = (rate(lap) / limit for lap, limit in zip(self.replies[side], self.limits, strict=True))
        return 100 * median(shares)

    def best_way(self, figure: Figure, *, smaller_is_better: bool = False) -> str | None:
        """Return the side that is vLLM's best way by a figure; None if vLLM was not there."""
        choose = min if smaller_is_better else max
        return choose(self.ways, key=lambda side: self.median(side, figure), default=None)


class Race:
    """All sides, started with one model."""

    def __init__(self, name: str, sides: Mapping[str, Helper], options: Options, console: Console) -> None:
        self.name = name
        self._sides = sides
        self._options = options
        self._console = console

    def __repr__(self) -> str:
        return f"Race({self.name}: {', '.join(self._sides)})"

    def run(self, workload: str, *, stream_interval: int = 1, measure_limit: Callable[[], float] | None = None) -> Laps:
        """Warm all up, then let them take turns; what the machine usually does is measured before each repetition."""
        laps: dict[str, list[list[Reply]]] = {side: [] for side in self._sides}
        limits = []
        for rep in range(self._options.reps + 1):
            if rep and measure_limit:
                limits.append(measure_limit())
            for side in self._of_round(rep):
                replies = self._lap(side, self._job(workload, rep, side, stream_interval), rep)
                if rep:
                    laps[side].append(replies)
        return Laps(laps, limits)

    def job(self, workload: str, rep: int, stream_interval: int = 1) -> Job:
        """Return a repetition's requests."""
        return Job(requests_of(self.name, workload, rep, self._options), stream_interval=stream_interval)

    def _of_round(self, rep: int) -> list[str]:
        return [side for side in self._sides if side != TRANSFORMERS or rep <= TRANSFORMERS_REPS]

    def _job(self, workload: str, rep: int, side: str, stream_interval: int) -> Job:
        job = self.job(workload, rep, stream_interval)
        if side == TRANSFORMERS and rep == 0:
            return Job(job.requests[:TRANSFORMERS_WARM_UP])
        return job

    def _lap(self, side: str, job: Job, rep: int) -> list[Reply]:
        before = neighbours.read()
        replies = self._sides[side].run(job)
        others = before.cores_of_others(neighbours.read())
        title = f"{self.name} {'warm-up' if rep == 0 else rep}, {side}"
        self._console.print(f"  {title}: {describe_replies(replies)}; others took {others:.2f} cores", highlight=False)
        return replies


def requests_of(name: str, workload: str, rep: int, options: Options) -> tuple[Request, ...]:
    """Return a repetition's requests for a model."""
    count = options.count or SMALL_COUNTS.get(name, {}).get(workload)
    return make_workload(workload, vocab_size=SHAPES[name].vocab_size, rep=rep, count=count).requests


@contextmanager
def race(name: str, options: Options, console: Console, *, with_transformers: bool = True) -> Iterator[Race]:
    """Start all sides with a bfloat16 model; they end with the block. Says so where vLLM is not there."""
    model, threads = str(ensure_model(name, "bf16")), str(options.threads)
    with ExitStack() as stack:
        sides = {OURS: stack.enter_context(Helper("bench.ours", model, threads, rests=True))}
        if "vllm" in options.peers:
            for way in options.ways:
                if helper := vllm_helper(model, way, options, console):
                    sides[f"{VLLM} {way}"] = stack.enter_context(helper)
        if with_transformers and "transformers" in options.peers:
            sides[TRANSFORMERS] = stack.enter_context(Helper("bench.peer", model, threads, rests=True))
        yield Race(name, sides, options, console)


def vllm_helper(
    model: str, way: str, options: Options, console: Console, *, adapters: Sequence[str] = ()
) -> Helper | None:
    """Return vLLM, started; None if there is no environment for it, which is said."""
    if (python := find_peer(console)) is None:
        return None
    variables = peer_variables(cores_of(options), environment(), own_process=way.endswith(OWN_PROCESS))
    dtype = way.removesuffix(OWN_PROCESS)
    return Helper("bench.vllm_peer", model, dtype, *adapters, python=python, env=variables, rests=True)


def cores_of(options: Options) -> list[int]:
    """Return the cores on which a side computes."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[: options.threads or len(cores)]
