"""Output tokens per second when 64 requests come at once (workload W1), against transformers' static batches of 16.

Finished outputs are what counts here, and transformers streams nothing: our worker is asked for the first token and
then for all others in as few messages as it gives (`stream_interval`). What streaming costs is told by `serve`.

Also: what scheduler, input preparation and sampling cost per step with 64 decoding sequences, the kernels left out.
Both sides compute in float32 with the same weights, so their greedy tokens must be the same; that is counted.
"""

from __future__ import annotations

from rich.console import Console

from bench.contest import contest
from bench.options import Options, main
from bench.replies import tokens_per_s
from bench.results import AtMost, RatioAtLeast, Row
from bench.step_cost import NUM_SEQS, measure_step_ms
from dormouse_api.limits import MAX_STREAM_INTERVAL


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [
        *(row for name in options.models for row in _measure_model(name, options, console)),
        *_measure_step(console),
    ]


def _measure_model(name: str, options: Options, console: Console) -> list[Row]:
    with contest(name, options) as sides:
        rounds = sides.run("W1", options, console, stream_interval=MAX_STREAM_INTERVAL)
    ours, peer = rounds.medians(tokens_per_s)
    return [
        Row(f"throughput W1, {name}", ours, "output tokens/s", peer, RatioAtLeast(2)),
        Row(f"W1, {name}: same tokens", rounds.num_equal, "requests", rounds.num_requests, RatioAtLeast(1)),
    ]


def _measure_step(console: Console) -> list[Row]:
    try:
        cost = measure_step_ms()
    except RuntimeError as error:
        console.print(f"  a step around the kernels: {error}", highlight=False)
        return []
    console.print(f"  a step around the kernels: {cost}", highlight=False)
    scheduling, where = "scheduler + input preparation", f"per step, {NUM_SEQS} sequences, outside torch"
    return [
        Row(f"{scheduling} {where}", cost.engine_ms + cost.prepare_ms, "ms", goal=AtMost(1)),
        Row(f"{scheduling} + sampling {where}", cost.total_ms, "ms", goal=AtMost(0.5)),
    ]


if __name__ == "__main__":
    main("throughput", __doc__, measure)
