"""One request alone (workload W2: 128 tokens in, 128 out): time to the first token, time per token after it.

Smaller is better: a ratio below 1 means that we are faster than transformers.
"""

from __future__ import annotations

from rich.console import Console

from bench.contest import contest
from bench.options import Options, main
from bench.replies import tpot_ms, ttft_ms
from bench.results import Row


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [row for name in options.models for row in _measure_model(name, options, console)]


def _measure_model(name: str, options: Options, console: Console) -> list[Row]:
    with contest(name, options) as sides:
        rounds = sides.run("W2", options, console)
    (our_ttft, peer_ttft), (our_tpot, peer_tpot) = rounds.medians(ttft_ms), rounds.medians(tpot_ms)
    return [
        Row(f"time to first token W2, {name}", our_ttft, "ms", peer_ttft),
        Row(f"time per output token W2, {name}", our_tpot, "ms", peer_tpot),
    ]


if __name__ == "__main__":
    main("latency", __doc__, measure)
