"""Our bfloat16 and int8 beside OpenVINO of the same: one request, 16 of all lengths, 64 at once, a shared prefix.

Engines of one model in processes of their own answer in turns, and rest while another is asked; medians of the
repetitions count. OpenVINO computes in two ways, of which the faster one counts: OpenVINO GenAI's continuous batching
with prefixes kept, and one static batch of requests of one length (W2, W4). In bfloat16 it multiplies bfloat16, in int8
it rounds rows to 8 bits. W1 and W3 are 16 requests, W4 is 64 of 32 tokens out. In W3 the first request comes alone and
the others once it has its first token, for both: GenAI shares no prefix among requests that come at once. Without
`make bench-processor-peers` there is nobody to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median

from rich.console import Console

from bench.helpers import Helper
from bench.models import ensure_model
from bench.options import Options, main
from bench.processor_env import MAKE, PEERS
from bench.quantized import NAMES, TRAINED, W4_OUT, Laps, laps_of, requests_of
from bench.race import cores_of
from bench.replies import Reply, tokens_per_s, tpot_ms, ttft_ms
from bench.results import Goal, RatioAtLeast, RatioAtMost, Row

COUNT = 16
COUNTS = {"W1": COUNT, "W3": COUNT}
METHODS = ("none", "int8")
OURS, GENAI, STATIC = "ours", "GenAI", "static"
SIDES: Mapping[str, tuple[str, ...]] = {  # that compute a workload
    "W2": (OURS, GENAI, STATIC),
    "W1": (OURS, GENAI),
    "W4": (OURS, GENAI, STATIC),
    "W3": (OURS, GENAI),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a workload, and what ours of a method must reach beside OpenVINO's."""

    what: str
    workload: str
    of: Callable[[Sequence[Reply]], float]
    unit: str
    goals: Mapping[str, Goal | None]

    def rows(self, name: str, laps: Laps) -> Iterator[Row]:
        """Yield a model's rows; OpenVINO's faster way counts."""
        faster = min if self.unit == "ms" else max
        for method, goal in self.goals.items():
            ours, *theirs = (median(map(self.of, laps[_side(way, method)])) for way in SIDES[self.workload])
            peer = "OpenVINO's faster way" if len(theirs) > 1 else "OpenVINO GenAI"
            what = f"{self.what}, {name} {NAMES[method]} beside {peer}"
            yield Row(what, ours, self.unit, faster(theirs), goal)


FIGURES = (
    Figure("time to first token W2", "W2", ttft_ms, "ms", {"none": RatioAtMost(1 / 1.05)}),
    Figure("time per output token W2", "W2", tpot_ms, "ms", {"none": None}),
    Figure(f"W1 of {COUNT}", "W1", tokens_per_s, "tok/s", {"none": RatioAtLeast(1.2), "int8": RatioAtLeast(1.2)}),
    Figure(f"W4 of {W4_OUT} out", "W4", tokens_per_s, "tok/s", {"none": RatioAtLeast(1.1)}),
    Figure(f"W3 of {COUNT}, one first", "W3", tokens_per_s, "tok/s", {"none": RatioAtLeast(1.15)}),
)


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    if not PEERS.is_made:
        console.print(f"  OpenVINO is not there: {MAKE}", style="yellow", highlight=False)
        return []
    return [row for name in options.models if name != TRAINED for row in _measure(name, options, console)]


def _measure(name: str, options: Options, console: Console) -> Iterator[Row]:
    threads, model = str(options.threads or len(cores_of(options))), str(ensure_model(name, "bf16"))
    with ExitStack() as stack:
        sides = {
            _side(way, method): stack.enter_context(_start(way, method, model, threads))
            for method in METHODS
            for way in _ways(method)
        }
        laps = {workload: _laps(workload, name, sides, options, console) for workload in SIDES}
    for figure in FIGURES:
        yield from figure.rows(name, laps[figure.workload])


def _laps(workload: str, name: str, sides: Mapping[str, Helper], options: Options, console: Console) -> Laps:
    methods = {method for figure in FIGURES if figure.workload == workload for method in figure.goals}
    names = {_side(way, method) for way in SIDES[workload] for method in methods}
    asked = {side: helper for side, helper in sides.items() if side in names}
    fewer = replace(options, count=options.count or COUNTS.get(workload))
    rounds = [requests_of(workload, name, rep, fewer) for rep in range(options.reps + 1)]
    console.print(f"  {workload}", highlight=False)
    return laps_of(asked, rounds, console, led=workload == "W3")


def _ways(method: str) -> list[str]:
    """Return the ways that a figure of a method asks for."""
    asked = {way for figure in FIGURES if method in figure.goals for way in SIDES[figure.workload]}
    return [way for way in (OURS, GENAI, STATIC) if way in asked]


def _start(way: str, method: str, model: str, threads: str) -> Helper:
    if way == OURS:
        return Helper("bench.ours", model, threads, method, rests=True)
    module = {GENAI: "bench.genai_peer", STATIC: "bench.openvino_peer"}[way]
    return Helper(module, model, method, threads, python=PEERS.python, rests=True)


def _side(way: str, method: str) -> str:
    return f"{way} {NAMES[method]}"


if __name__ == "__main__":
    main("openvino_race", __doc__, measure)
