"""What hostile grammars do: `python -m bench.structured_hostile --merge`.

How long the front takes for each, until it refuses it or has it; and what the neighbours notice: the 99th percentile of
the times between tokens of four streams, while one caller sends the slowest of them without a pause, beside none.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread

import grpc
from rich.console import Console

from bench.options import Options, main
from bench.results import AtMost, RatioAtMost, Row
from bench.structured_cases import HOSTILE
from bench.worker import Worker, ready_worker
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.text.grammars import Grammars
from tools.train_model import Recipe, model_dir

SLOWEST = "multipleOf a prime"
NUM_STREAMS, NUM_TOKENS, PAIRS = 4, 400, 5


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    model = model_dir(Recipe())
    refused = asyncio.run(_refused(model))
    with ready_worker(model) as worker:
        pairs = list(_laps(worker, options.count or PAIRS, console))
    ours, peer = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    what = f"99th percentile between tokens of {NUM_STREAMS} streams, a hostile caller beside none, trained model"
    return [*refused, Row(what, 1e3 * ours, "ms", 1e3 * peer, RatioAtMost(1.1))]


async def _refused(model: Path) -> list[Row]:
    """Return how long the front takes for each hostile grammar."""
    rows = []
    for what, order in HOSTILE.items():
        grammars = Grammars(model / "tokenizer.json", ends_of(model))
        await grammars.compile(pb.StructuredOutputs(json_object=True), "bench")
        began_s = time.monotonic()
        try:
            await grammars.compile(_constraint(order), "bench")
            end = "taken"
        except CallError:
            end = "refused"
        seconds = time.monotonic() - began_s
        grammars.close()
        rows.append(Row(f"hostile: {what}, {end}", seconds, "s", goal=AtMost(2)))
    return rows


def ends_of(model: Path) -> tuple[int, ...]:
    """Return a model's end-of-sequence tokens."""
    ends = json.loads((model / "config.json").read_text("utf-8"))["eos_token_id"]
    return (ends,) if isinstance(ends, int) else tuple(ends)


def _laps(worker: Worker, count: int, console: Console) -> Iterator[tuple[float, float]]:
    """Yield the percentile beside a hostile caller and without one, in turns; the first turn warms up."""
    for number in range(count + 1):
        quiet_s = _percentile(worker)
        with _HostileCaller(worker) as caller:
            hostile_s = _percentile(worker)
        if number:
            console.print(f"  {hostile_s / quiet_s:.2f} ({caller.num_refused} refused)", highlight=False)
            yield hostile_s, quiet_s


def _percentile(worker: Worker) -> float:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        gaps = [gap for stream in pool.map(lambda seed: _gaps(worker, seed), range(NUM_STREAMS)) for gap in stream]
    return quantiles(gaps, n=100)[-1]


def _gaps(worker: Worker, seed: int) -> list[float]:
    params = pb.SamplingParams(temperature=1, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True)
    times_s = [
        time.monotonic()
        for _ in worker.inference.Generate(pb.GenerateRequest(text="Once", sampling_params=params), timeout=120)
    ]
    return [later - earlier for earlier, later in pairwise(times_s)]


class _HostileCaller:
    """Sends the slowest grammar again as soon as it is refused. Use as a context manager."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._is_over = worker, Event()
        self._thread = Thread(target=self._send)
        self.num_refused = 0

    def __enter__(self) -> _HostileCaller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _send(self) -> None:
        params = pb.SamplingParams(max_tokens=9, structured_outputs=_constraint(HOSTILE[SLOWEST]))
        while not self._is_over.is_set():
            try:
                list(self._worker.inference.Generate(pb.GenerateRequest(text="a", sampling_params=params), timeout=60))
            except grpc.RpcError:
                self.num_refused += 1


def _constraint(order: Mapping[str, str]) -> pb.StructuredOutputs:
    wanted = pb.StructuredOutputs()
    setattr(wanted, order["kind"], order["value"])
    return wanted


if __name__ == "__main__":
    main("structured", __doc__, measure)
