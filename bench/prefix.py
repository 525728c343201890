"""32 requests that share a prefix of 512 tokens (workload W3; q05: 16 requests).

In bfloat16 in process, beside vLLM's best way to compute the same model, with its prefix cache, and transformers.
In float32 over gRPC beside transformers (tiny and small), and the very same requests a second time.

Cold, the first sequence computes the prefix and the others may find it; the second time everything was seen before.
The cached tokens are those that the worker reports in `usage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Console

from bench.contest import Contest, Figure, contest, rows_of_models
from bench.options import Options, main
from bench.race import OURS, VLLM, race
from bench.race_figures import SPEED, cached_share, speed_rows
from bench.replies import Reply, tokens_per_s, ttft_ms
from bench.results import Row
from dormouse_api.limits import MAX_STREAM_INTERVAL


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return rows_of_models(options, console, _race, _measure_float32)


def _race(name: str, options: Options, console: Console) -> Iterator[Row]:
    with race(name, options, console) as sides:
        laps = sides.run("W3", stream_interval=MAX_STREAM_INTERVAL)
    yield from speed_rows("W3", name, laps, {VLLM: SPEED})
    best = laps.best_way(tokens_per_s)
    peer = None if best is None else cached_share(laps.replies[best])
    yield Row(f"prompt tokens from the cache W3, {name} bf16", cached_share(laps.replies[OURS]), "%", peer)


def _measure_float32(name: str, options: Options, console: Console) -> list[Row]:
    with contest(name, options) as sides:
        cold = sides.run("W3", options, console)
        again = _run_again(sides, options)
    speed, peer_speed = cold.medians(tokens_per_s)
    ttft, peer_ttft = cold.medians(ttft_ms)
    return [
        Row(f"throughput W3 cold, {name}", speed, "output tokens/s", peer_speed),
        Row(f"throughput W3 second time, {name}", _median(again, tokens_per_s), "output tokens/s", peer_speed),
        Row(f"time to first token W3 cold, {name}", ttft, "ms", peer_ttft),
        Row(f"time to first token W3 second time, {name}", _median(again, ttft_ms), "ms", peer_ttft),
        Row(f"prompt tokens from the cache W3 cold, {name}", cached_share(cold.ours), "%"),
        Row(f"prompt tokens from the cache W3 second time, {name}", cached_share(again), "%"),
    ]


def _run_again(sides: Contest, options: Options) -> list[list[Reply]]:
    """Run each measured repetition alone twice in a row and return the second: others in between may push it out."""
    jobs = [sides.job("W3", options, rep) for rep in range(1, options.reps + 1)]
    return [[sides.ours.run(job) for _ in range(2)][-1] for job in jobs]


def _median(rounds: Sequence[Sequence[Reply]], figure: Figure) -> float:
    return median(map(figure, rounds))


if __name__ == "__main__":
    main("prefix", __doc__, measure)
