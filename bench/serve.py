"""Serving over the network: our worker's gRPC beside vLLM's own server, under load that does not wait for answers.

    race     Poisson arrivals at 70 % of vLLM's saturation rate: TTFT, TPOT, ITL and E2EL, p50 and p99, and goodput
    streams  64 gRPC streams of the small shape beside the same requests in process
    front    the front's processor time per token message, over an engine that computes nothing

The race. Prompts and answers have 64 to 192 tokens, 128 on average (vLLM's `bench serve` calls that --random-input-len
128 --random-output-len 128 --random-range-ratio 0.5); prompts are token ids, sampling is greedy, end-of-sequence is
ignored, every token is a message with its text on both sides. Weights are the same bfloat16, caches have 1 GiB each,
and all else is each server's default. vLLM's saturation rate is the request throughput of a closed loop with 64
requests under way (q05: 16), measured in the same run; of its ways (--ways) the one that saturates last races. Then
both take turns under the same arrivals of the same requests, 32 to 256 of them in about 25 s, and the median of the
repetitions counts. Every run begins with a request that does not. The client is that of `dormouse bench`, in a process
of its own; the names are those of vLLM's `bench serve`. Smaller is better for all times: a ratio below 1 means that we
are faster.

tiny and small take part; q05 does when --models names it without naming all three. --count is the number of requests
of each run, and of streams. Rows that a run does not have stay in the file. With --picture, runs with 1, 4 and 16
requests under way and at 30, 50 and 90 % of the rate follow, one of each side, and serve-throughput.svg and
serve-latency.svg are drawn beside the rows, of this run's models: some 5 to 8 minutes more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.curves_picture import draw
from bench.front_cost import measure_front
from bench.options import MODELS, Options, main
from bench.results import Row, machine
from bench.serve_figures import Found, latency_panels, throughput_panels, to_rows
from bench.serve_race import measure_serve
from bench.serve_streams import measure_streams

BESIDE_VLLM = ("tiny", "small")  # where all models are meant: the largest takes as long as both


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows; with `picture` draw the curves beside them."""
    raced = [measure_serve(name, options, console) for name in models_of(options)] if "vllm" in options.peers else []
    races = [found for found in raced if found is not None]
    if options.picture and options.results_dir is not None and races:
        draw_curves(races, options.results_dir)
    rows = [row for found in races for row in to_rows(found)]
    return [*rows, *measure_streams(options, console), *measure_front(options, console)]


def models_of(options: Options) -> tuple[str, ...]:
    """Return which models race."""
    return BESIDE_VLLM if options.models == MODELS else options.models


def draw_curves(races: Sequence[Found], directory: Path) -> None:
    """Write the two pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {
        "serve-throughput.svg": ("Throughput over concurrency", throughput_panels(races)),
        "serve-latency.svg": ("Latency over arrival rate", latency_panels(races)),
    }
    for name, (title, panels) in pictures.items():
        (directory / name).write_text(draw(f"{title}; {machine()}", panels), "utf-8")


if __name__ == "__main__":
    main("serve", __doc__, measure)
