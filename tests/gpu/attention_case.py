"""All attention backends against the textbook formula: compiled on a GPU, else ours under Triton's interpreter.

On a GPU several processes share the cases: nearly all of the time goes to Triton's compiler, which uses one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

from bench.results import AtMost, Row
from tests.gpu.attention_cases import Result, make_cases, make_long_cases, run_all
from tests.gpu.attention_world import Case
from tests.gpu.device_kit import Kit
from tests.gpu.shares import num_processes, share_out
from tools.bootstrap import ROOT

LIMIT_S = 120  # on a GPU, where every case compiles kernels of its own
INTERPRETED = (
    "head-size-80",
    "heads-8-on-1",
    "block-size-8",
    "window-20",
    "soft-cap-sinks-window",
    "8-bits",
    "independence",
)


def run(kit: Kit) -> list[Row]:
    """Check every backend that there is on every case."""
    if not kit.is_gpu:
        return to_rows([*run_all("cpu", make_cases()), *_interpret()])
    results, num_left_out = _share_out(num_processes())
    return [*to_rows(results), Row("attention: cases left out for lack of time", num_left_out, "cases", goal=AtMost(0))]


def be_share(share: str) -> int:
    """Be one of the processes: check every COUNT-th case from NUMBER on; say the results and how many were left out."""
    number, count = map(int, share.split("/"))
    cases = (*make_long_cases(), *make_cases())[number::count]
    results, num_left_out = run_until(LIMIT_S, lambda case: run_all("cuda", [case]), cases)
    print(json.dumps([[asdict(result) for result in results], num_left_out]), flush=True)
    return 0


def _share_out(count: int) -> tuple[list[Result], int]:
    """Have so many processes check the cases; return the results, each once, and how many cases were left out."""
    results: dict[Result, None] = {}
    num_left_out = 0
    for found, left_out in share_out("attention-share", [f"{number}/{count}" for number in range(count)]):
        results |= dict.fromkeys(Result(**one) for one in found)
        num_left_out += left_out
    return list(results), num_left_out


def run_until(
    limit_s: float,
    check: Callable[[Case], list[Result]],
    cases: Sequence[Case],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Result], int]:
    """Check cases until the time is over; return the results, each once, and how many cases were left out."""
    started_s = clock()
    results: dict[Result, None] = {}
    for number, case in enumerate(cases):
        if clock() - started_s > limit_s:
            return list(results), len(cases) - number
        results |= dict.fromkeys(check(case))  # that of a backend's equal bits comes with every case
    return list(results), 0


def to_rows(results: Sequence[Result]) -> list[Row]:
    """Print the failures; return a row for each backend."""
    for result in results:
        if result.error is not None:
            print(f"    {result.backend} {result.case}: {result.error}", flush=True)
    tried, failed, refused = (
        Counter(result.backend for result in results if has(result))
        for has in (lambda r: r.refusal is None, lambda r: r.error is not None, lambda r: r.refusal is not None)
    )
    return [
        Row(_describe(name, tried[name], refused[name]), failed[name], "cases", goal=AtMost(0))
        for name in dict.fromkeys(result.backend for result in results)
    ]


def _describe(backend: str, num_tried: int, num_refused: int) -> str:
    beside = f", {num_refused} not its own" if num_refused else ""
    return f"attention {backend}: wrong of {num_tried}{beside}"


def _interpret() -> list[Result]:
    """Ask a process with the interpreter, which decides for all kernels of a process when triton is imported."""
    folders = os.pathsep.join(str(ROOT / name) for name in ("api", "worker_image", "."))
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.model.attention.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": folders},
        input="\n".join(INTERPRETED) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    answers = done.stdout.splitlines()
    if len(answers) != len(INTERPRETED):
        raise RuntimeError(f"the interpreter's process ended with {done.returncode}: {done.stderr[-500:]}")
    return [
        Result("triton (interpreted)", case, json.loads(answer))
        for case, answer in zip(INTERPRETED, answers, strict=True)
    ]
