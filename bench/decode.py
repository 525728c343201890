"""Output tokens per second of 64 sequences that only decode (workload W4: 32 tokens in, 128 out; q05: 16 sequences).

In bfloat16 in process, beside vLLM's best way to compute the same model; with the rate of the machine's products at 64
rows, and our share of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.console import Console

from bench.limits import measure_product_gflop_per_s, use_threads
from bench.models import SHAPES
from bench.options import Options, main
from bench.race import VLLM, race
from bench.race_figures import SPEED, product_rows, speed_rows
from bench.results import Row
from dormouse_api.limits import MAX_STREAM_INTERVAL

WORKLOAD = "W4"


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [row for name in options.models for row in _race(name, options, console)]


def _race(name: str, options: Options, console: Console) -> Iterator[Row]:
    use_threads(options)
    measure_limit = partial(measure_product_gflop_per_s, SHAPES[name])
    with race(name, options, console, with_transformers=False) as sides:
        laps = sides.run(WORKLOAD, stream_interval=MAX_STREAM_INTERVAL, measure_limit=measure_limit)
    yield from speed_rows(WORKLOAD, name, laps, {VLLM: SPEED})
    yield from product_rows(WORKLOAD, name, laps)


if __name__ == "__main__":
    main("decode", __doc__, measure)
