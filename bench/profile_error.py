"""How far the profile's prediction is from what a worker really takes at full load.

Predicted: weights, peak activations, libraries and every block of the cache that was agreed on. Used: the most that the
worker's process ever held while as many sequences as allowed filled the whole cache, in chunks as large as allowed, and
then decoded with the costliest sampling. Each worker is a process of its own, and its front is left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console

from bench.helpers import environment
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtMost, Row
from dormouse_worker.engine.batch import Batch, NewSequence, ScheduledSequence
from dormouse_worker.host import Host
from dormouse_worker.ipc import MemoryReport
from dormouse_worker.model.profile import COSTLY
from dormouse_worker.settings import EngineSettings

MAX_ERROR_PERCENT = 5.0
CACHE_BYTES = 256 << 20  # of every worker: as much as the rest of a small one, and filled in a minute
DECODE_STEPS = 4
MIB = 1 << 20


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [row for name in options.models for row in _measure_model(name, options, console)]


@dataclass(frozen=True, slots=True)
class Load:
    """How many sequences of which length fill a cache."""

    num_seqs: int
    blocks_each: int  # of each layer group
    block_size: int
    num_groups: int

    @property
    def num_blocks(self) -> int:
        """Return the blocks that are filled."""
        return self.num_seqs * self.blocks_each * self.num_groups

    @property
    def prompt_len(self) -> int:
        """Return how many tokens are not decoded."""
        return self.blocks_each * self.block_size - DECODE_STEPS


def choose_load(report: MemoryReport, *, max_num_seqs: int, num_groups: int) -> Load:
    """Return the load that takes the most blocks of the report's: sequences are no longer than the model allows."""
    blocks_each = min(report.num_gpu_blocks // (max_num_seqs * num_groups), report.max_model_len // report.block_size)
    load = Load(max_num_seqs, blocks_each, report.block_size, num_groups)
    assert load.prompt_len > 0, "fewer blocks than a prompt and its output take"
    return load


def full_load(load: Load, max_num_batched_tokens: int) -> Iterator[Batch]:
    """Yield the batches that fill every block and decode at the end.

    Prompts are computed one after the other, in batches as large as allowed; so the last ones find the cache full.
    """
    yield from _prefill(load, max_num_batched_tokens)
    for start in range(load.prompt_len, load.prompt_len + DECODE_STEPS - 1):
        decode = tuple(
            ScheduledSequence(str(index), start, start + 1, ([],) * load.num_groups, samples=True)
            for index in range(load.num_seqs)
        )
        yield Batch(is_fresh=False, released=(), swap_out=(), swap_in=(), new=(), sequences=decode)


def _prefill(load: Load, max_tokens: int) -> Iterator[Batch]:
    chunks = deque(
        (index, start, min(load.prompt_len, start + max_tokens))
        for index in range(load.num_seqs)
        for start in range(0, load.prompt_len, max_tokens)
    )
    free_blocks = iter(range(load.num_blocks))
    is_fresh = True
    while chunks:
        new, sequences, num_tokens = [], [], 0
        while chunks and num_tokens + chunks[0][2] - chunks[0][1] <= max_tokens:
            index, start, end = chunks.popleft()
            count = 0 if start else load.blocks_each
            if not start:
                new.append(NewSequence(str(index), [0] * load.prompt_len, [], COSTLY))
            blocks = tuple(list(islice(free_blocks, count)) for _ in range(load.num_groups))
            sequences.append(ScheduledSequence(str(index), start, end, blocks, samples=end == load.prompt_len))
            num_tokens += end - start
        yield Batch(is_fresh, (), (), (), tuple(new), tuple(sequences))
        is_fresh = False


class LonelyHost(Host):
    """The host of a worker without a front: nobody else's memory counts."""

    def resident_bytes(self, pid: int | None = None) -> int:
        """Return ours, and 0 for every other process."""
        return super().resident_bytes() if pid is None else 0


def compare(settings: EngineSettings) -> dict[str, int]:
    """Return what a worker of these settings was predicted to take, and what it took, both in bytes."""
    from dormouse_worker.executor.cpu_worker import CpuWorker  # torch, in the worker's process alone

    host = LonelyHost()
    worker = CpuWorker(settings, 0, host)
    worker.init_device()
    worker.load_model()
    worker.determine_num_available_blocks()
    report = worker.get_memory_report()
    assert report is not None
    load = choose_load(report, max_num_seqs=settings.max_num_seqs, num_groups=len(worker.layer_windows()))
    worker.initialize_cache(load.num_blocks, 0)
    host.reset_peak()
    for batch in full_load(load, settings.max_num_batched_tokens):
        worker.execute_model(batch)
    parts = (report.weights_bytes, report.peak_activation_bytes, report.non_torch_bytes, report.graph_bytes)
    predicted_bytes = sum(parts) + load.num_blocks * report.block_bytes
    return {"predicted_bytes": predicted_bytes, "used_bytes": host.peak_resident_bytes()}


def _measure_model(name: str, options: Options, console: Console) -> list[Row]:
    command = [sys.executable, "-m", "bench.profile_error", "--worker", str(ensure_model(name))]
    command += ["--threads", str(options.threads)]
    result = json.loads(subprocess.run(command, env=environment(), check=True, stdout=subprocess.PIPE).stdout)
    predicted_bytes, used_bytes = result["predicted_bytes"], result["used_bytes"]
    console.print(f"  {name}: predicted {predicted_bytes}, used {used_bytes} bytes", highlight=False)
    error_percent = 100 * abs(predicted_bytes - used_bytes) / used_bytes
    return [
        Row(f"profile error at full load, {name}", error_percent, "%", goal=AtMost(MAX_ERROR_PERCENT)),
        Row(f"memory at full load, {name}: predicted, used", predicted_bytes / MIB, "MiB", used_bytes / MIB),
    ]


def _be_worker(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", required=True)
    parser.add_argument("--threads", type=int, default=0)
    flags = parser.parse_args(argv)
    settings = EngineSettings(
        model=str(Path(flags.worker)),
        threads=flags.threads,
        max_model_len=2048,
        kv_cache_memory_bytes=CACHE_BYTES,
        memory_limit_bytes=8 << 30,
    )
    print(json.dumps(compare(settings)))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        _be_worker(sys.argv[1:])
    else:
        main("profile_error", __doc__, measure)
