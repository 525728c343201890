"""What this machine usually does, measured in the run of the figures that stand beside it: reading, and multiplying.

Each limit is the median of the best of torch's ways: a run of seconds is no faster than that, and a machine with
neighbours is much faster for moments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from statistics import median

import torch
from torch.nn.functional import linear

from bench.models import Shape
from bench.options import Options

READ_BYTES = 512 << 20
ROUNDS = 12
BATCH_ROWS = 64  # sequences of a full batch
Run = Callable[[], object]


def use_threads(options: Options) -> None:
    """Measure with as many threads as the sides compute with."""
    torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))


def measure_read_gb_per_s() -> float:
    """Return the rate of reading memory: the best of a plain sum and of matrix-vector products in both types."""
    numbers = torch.ones(READ_BYTES // 4)
    halves = numbers.view(torch.bfloat16).view(-1, 4096)
    singles = numbers.view(-1, 4096)
    ways: list[Run] = [
        numbers.sum,
        lambda: singles @ torch.ones(4096),
        lambda: halves @ torch.ones(4096, dtype=torch.bfloat16),
    ]
    with torch.inference_mode():
        return READ_BYTES / min(usual_of(ways)) / 1e9


def measure_product_gflop_per_s(shape: Shape, num_rows: int = BATCH_ROWS) -> float:
    """Return the rate of the model's own widest products with so many rows, layer after layer: the better type's."""
    columns, outputs = shape.hidden_size, 2 * shape.intermediate_size
    gflop = 2e-9 * num_rows * columns * outputs
    with torch.inference_mode():
        ways = [_product(dtype, num_rows, shape) for dtype in (torch.bfloat16, torch.float32)]
        return gflop / min(usual_of(ways, rounds=ROUNDS * shape.num_hidden_layers))


def _product(dtype: torch.dtype, num_rows: int, shape: Shape) -> Run:
    columns, outputs = shape.hidden_size, 2 * shape.intermediate_size
    weights = cycle([torch.randn(outputs, columns).to(dtype) for _ in range(shape.num_hidden_layers)])
    rows = torch.randn(num_rows, columns).to(dtype)
    return lambda: linear(rows, next(weights))


def usual_of(runs: Sequence[Run], rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return each one's median time in seconds; they take turns, after one round to warm up."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, taken in zip(runs, times, strict=True):
            started_s = clock()
            run()
            taken.append(clock() - started_s)
    return [median(taken[1:]) for taken in times]
