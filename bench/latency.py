"""One request alone (workload W2: 128 tokens in, 128 out): time to the first token, time per token after it.

In bfloat16 in process, beside vLLM's best way to compute the same model and beside transformers; with the rate at which
the machine reads memory, and our share of it: for each token all weights are read once. In float32 over gRPC beside
transformers (tiny and small). Smaller is better: a ratio below 1 means that we are faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from bench.contest import contest, rows_of_models
from bench.limits import measure_read_gb_per_s, use_threads
from bench.options import Options, main
from bench.race import VLLM, race
from bench.race_figures import TTFT, first_token_rows, per_token_rows, read_rows
from bench.replies import tpot_ms, ttft_ms
from bench.results import Row

WORKLOAD = "W2"


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return rows_of_models(options, console, _race, _measure_float32)


def _race(name: str, options: Options, console: Console) -> Iterator[Row]:
    use_threads(options)
    with race(name, options, console) as sides:
        laps = sides.run(WORKLOAD, measure_limit=measure_read_gb_per_s)
    yield from first_token_rows(WORKLOAD, name, laps, {VLLM: TTFT})
    yield from per_token_rows(WORKLOAD, name, laps)
    yield from read_rows(WORKLOAD, name, laps)


def _measure_float32(name: str, options: Options, console: Console) -> Iterator[Row]:
    with contest(name, options) as sides:
        rounds = sides.run(WORKLOAD, options, console)
    (our_ttft, peer_ttft), (our_tpot, peer_tpot) = rounds.medians(ttft_ms), rounds.medians(tpot_ms)
    yield Row(f"time to first token W2, {name}", our_ttft, "ms", peer_ttft)
    yield Row(f"time per output token W2, {name}", our_tpot, "ms", peer_tpot)


if __name__ == "__main__":
    main("latency", __doc__, measure)
