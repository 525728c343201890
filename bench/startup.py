"""From the start of the worker's process to its first token: tiny in float32; each model in bfloat16, beside vLLM.

Weights are cached by the operating system and code is compiled, as the warm-up leaves them and as images have it.
vLLM runs in one process, which starts fastest; what it has compiled for the model is cached by its own warm-up, too.

Nothing is polled: the status is watched, the cache is initialised as soon as the report is there, and one token is
asked for. What passes before the worker's first answer is Python, its imports and the connection; then it loads and
profiles; then it allocates, warms up and records its golden tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console

from bench.client import to_message
from bench.helpers import Job
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.race import vllm_helper
from bench.results import AtMost, RatioAtMost, Row
from bench.worker import Worker
from bench.workload import Request, make_workload
from dormouse_api.v1 import worker_control_pb2 as control

MODEL = "tiny"
WAY = "bfloat16"
GOALS_S = {"tiny": 1.0, "small": 1.5, "q05": 2.0}
VLLM_GOAL = RatioAtMost(0.25)


@dataclass(frozen=True, slots=True)
class Start:
    """When things happened, in seconds since the process was started."""

    answering_s: float  # the front's first status
    profiled_s: float  # loaded and profiled
    ready_s: float  # cache allocated, warmed up
    first_token_s: float


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    compared = [row for name in options.models for row in _beside_vllm(name, options, console)]
    return [*_measure_alone(options, console), *compared]


def _measure_alone(options: Options, console: Console) -> list[Row]:
    model = ensure_model(MODEL)
    starts = [_start(MODEL, model, options, console) for _ in range(options.reps + 1)]
    del starts[0]  # it read and compiled

    def row(what: str, seconds: list[float], goal: AtMost | None = None) -> Row:
        return Row(what, median(seconds), "s", goal=goal)

    return [
        row(
            f"process start to first token, {MODEL}", [start.first_token_s for start in starts], AtMost(GOALS_S[MODEL])
        ),
        row("of it: until the front answers", [start.answering_s for start in starts]),
        row("of it: engine starts, loads and profiles", [start.profiled_s - start.answering_s for start in starts]),
        row("of it: allocates and warms up", [start.ready_s - start.profiled_s for start in starts]),
        row("of it: first request", [start.first_token_s - start.ready_s for start in starts]),
    ]


def _beside_vllm(name: str, options: Options, console: Console) -> list[Row]:
    """Let both start in turns."""
    model = ensure_model(name, "bf16")
    ours_s, peer_s = [], []
    for _ in range(options.reps + 1):
        ours_s.append(_start(name, model, options, console).first_token_s)
        if "vllm" in options.peers and (seconds := _start_vllm(name, model, options, console)) is not None:
            peer_s.append(seconds)
    peer = median(peer_s[1:]) if peer_s else None
    goal = None if peer is None else VLLM_GOAL
    ours = median(ours_s[1:])
    return [
        Row(f"process start to first token, {name} bf16", ours, "s", goal=AtMost(GOALS_S[name])),
        Row(f"process start to first token, {name} bf16, beside vLLM", ours, "s", peer, goal),
    ]


def _start_vllm(name: str, model: Path, options: Options, console: Console) -> float | None:
    """Return the seconds to its first token; None if there is no vLLM."""
    began_s = time.monotonic()
    helper = vllm_helper(str(model), WAY, options, console)
    if helper is None:
        return None
    with helper:
        helper.run(Job((one_token(name),)))
        seconds = time.monotonic() - began_s
    console.print(f"  vLLM, {name}: {seconds:.2f} s", highlight=False)
    return seconds


def one_token(name: str) -> Request:
    """Return a request for one token."""
    return msgspec.structs.replace(make_workload("W2", vocab_size=SHAPES[name].vocab_size).requests[0], max_tokens=1)


def _start(name: str, model: Path, options: Options, console: Console) -> Start:
    message = to_message(one_token(name))
    began_s = time.monotonic()
    worker = Worker(model, flags=("--threads", str(options.threads)))
    try:
        answering_s, profiled_s = _until_profiled(worker)
        ready_s = time.monotonic()
        for _ in worker.inference.Generate(message):
            break
        now_s = time.monotonic()
    finally:
        worker.close()
    start = Start(answering_s - began_s, profiled_s - began_s, ready_s - began_s, now_s - began_s)
    console.print(f"  {start}", highlight=False)
    return start


def _until_profiled(worker: Worker) -> tuple[float, float]:
    """Make the worker READY; return when it first answered and when its report came."""
    answering_s = None
    for status in worker.statuses():
        answering_s = answering_s or time.monotonic()
        if status.state == control.WORKER_STATE_PROFILED:
            profiled_s = time.monotonic()
            worker.initialize_cache(status.report)
            return answering_s, profiled_s
    raise RuntimeError("the worker ended before it was profiled")


if __name__ == "__main__":
    main("startup", __doc__, measure)
