"""32 requests that share a prefix of 512 tokens (workload W3), and the very same requests a second time.

Cold, the first sequence computes the prefix and the others may find it; the second time everything was seen before.
The cached tokens are those that the worker reports in `usage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Console

from bench.contest import Contest, Figure, contest
from bench.options import Options, main
from bench.replies import Reply, tokens_per_s, ttft_ms
from bench.results import Row


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [row for name in options.models for row in _measure_model(name, options, console)]


def _measure_model(name: str, options: Options, console: Console) -> list[Row]:
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
        Row(f"prompt tokens from the cache W3 cold, {name}", _cached_share(cold.ours), "%"),
        Row(f"prompt tokens from the cache W3 second time, {name}", _cached_share(again), "%"),
    ]


def _run_again(sides: Contest, options: Options) -> list[list[Reply]]:
    """Run each measured repetition alone twice in a row and return the second: others in between may push it out."""
    jobs = [sides.job("W3", options, rep) for rep in range(1, options.reps + 1)]
    return [[sides.ours.run(job) for _ in range(2)][-1] for job in jobs]


def _median(rounds: Sequence[Sequence[Reply]], figure: Figure) -> float:
    return median(map(figure, rounds))


def _cached_share(rounds: Sequence[Sequence[Reply]]) -> float:
    """Return the share of all prompt tokens, 0 to 100."""
    replies = [reply for replies in rounds for reply in replies]
    return 100 * sum(reply.cached_tokens for reply in replies) / sum(reply.prompt_tokens for reply in replies)


if __name__ == "__main__":
    main("prefix", __doc__, measure)
