"""Output tokens per second when 64 requests come at once (workload W1; q05: 16).

In bfloat16 in process, beside vLLM's best way to compute the same model and beside transformers' static batches of 16;
with the rate of the machine's products, and our share of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from rich.console import Console

from bench.contest import contest, rows_of_models
from bench.limits import measure_product_gflop_per_s, use_threads
from bench.models import SHAPES
from bench.options import Options, main
from bench.race import TRANSFORMERS, VLLM, race
from bench.race_figures import SPEED, product_rows, speed_rows
from bench.replies import tokens_per_s
from bench.results import AtMost, RatioAtLeast, Row
from bench.step_cost import NUM_SEQS, RANDOM, measure_step_ms
from dormouse_api.limits import MAX_STREAM_INTERVAL

WORKLOAD = "W1"
GOALS = {VLLM: SPEED, TRANSFORMERS: RatioAtLeast(4)}


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [*rows_of_models(options, console, _race, _measure_float32), *_measure_step(console)]


def _race(name: str, options: Options, console: Console) -> Iterator[Row]:
    use_threads(options)
    measure_limit = partial(measure_product_gflop_per_s, SHAPES[name])
    with race(name, options, console) as sides:
        laps = sides.run(WORKLOAD, stream_interval=MAX_STREAM_INTERVAL, measure_limit=measure_limit)
    yield from speed_rows(WORKLOAD, name, laps, GOALS)
    yield from product_rows(WORKLOAD, name, laps)


def _measure_float32(name: str, options: Options, console: Console) -> Iterator[Row]:
    with contest(name, options) as sides:
        rounds = sides.run(WORKLOAD, options, console, stream_interval=MAX_STREAM_INTERVAL)
    ours, peer = rounds.medians(tokens_per_s)
    yield Row(f"throughput W1, {name}", ours, "output tokens/s", peer, RatioAtLeast(2))
    yield Row(f"W1, {name}: same tokens", rounds.num_equal, "requests", rounds.num_requests, RatioAtLeast(1))


def _measure_step(console: Console) -> list[Row]:
    try:
        greedy, random = measure_step_ms(), measure_step_ms(sampling=RANDOM)
    except RuntimeError as error:
        console.print(f"  a step around the kernels: {error}", highlight=False)
        return []
    console.print(f"  a step around the kernels: {greedy}", highlight=False)
    console.print(f"  with random sampling: {random}", highlight=False)
    scheduling, where = "scheduler + input preparation", f"per step, {NUM_SEQS} sequences, outside torch"
    return [
        Row(f"{scheduling} {where}", greedy.engine_ms + greedy.prepare_ms, "ms", goal=AtMost(1)),
        Row(f"{scheduling} + sampling {where}", greedy.total_ms, "ms", goal=AtMost(0.5)),
        Row(f"random sampling ({_describe(RANDOM)}) {where}", random.sample_ms, "ms", goal=AtMost(1)),
    ]


def _describe(sampling: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sampling.items())


if __name__ == "__main__":
    main("throughput", __doc__, measure)
