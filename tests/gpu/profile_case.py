"""What the profile says a worker will take, beside what the device says it has taken at full load.

The worker lives in a process of its own, so that its context is counted, and is measured from this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.results import AtMost, Row
from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.memory.profile import profile_batches
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.device_kit import GIB, GpuKit, Kit
from tests.gpu.shares import PROGRAM

MAX_ERROR_PERCENT = 3
BLOCK_SIZE, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 16, 256, 8192


def run(kit: Kit) -> list[Row]:
    """Compare both. Only on a GPU."""
    kit.tidy()
    before_bytes = kit.device.memory.free_bytes()
    with tempfile.TemporaryDirectory() as folder:
        directory = write_tiny_model(Path(folder), "llama", **kit.scale.model)
        command = [sys.executable, str(PROGRAM), "loaded-worker", str(directory)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            told = child.stdout.readline()
            used_bytes = before_bytes - kit.device.memory.free_bytes()
            child.stdin.close()
    if not told:
        raise RuntimeError(f"the worker's process ended with {child.returncode}: see its words above")
    parts = {name: _Part(*both) for name, both in json.loads(told).items()}
    total = _Part(sum(part.predicted_bytes for part in parts.values()), used_bytes)
    error_percent = 100 * abs(total.predicted_bytes - used_bytes) / used_bytes
    return [
        total.row("predicted, and used at full load"),
        *(part.row(f"of it {name}") for name, part in parts.items()),
        Row("profile: error", error_percent, "%", goal=AtMost(MAX_ERROR_PERCENT)),
    ]


@dataclass(frozen=True)
class _Part:
    """What was predicted of a part of the memory, and what it was."""

    predicted_bytes: int
    used_bytes: int

    def row(self, what: str) -> Row:
        return Row(f"profile: {what}", self.predicted_bytes / GIB, "GiB", self.used_bytes / GIB)


def be_loaded_worker(directory: str) -> int:
    """Be the other process: load, profile, run the largest batches on the whole cache, say what was foretold and is."""
    kit = GpuKit()
    worker = kit.make_worker(
        Path(directory),
        dtype="bfloat16",
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        kv_cache_memory_bytes=kit.scale.cache_bytes,
    )
    worker.load_model()
    worker.initialize_cache(*worker.determine_num_available_blocks())
    report = worker.get_memory_report()
    assert report is not None
    _use_fully(worker, report)
    print(json.dumps(compare(report, worker)), flush=True)
    sys.stdin.read()
    return 0


def compare(report: MemoryReport, worker: RankWorker) -> dict[str, tuple[int, int]]:
    """Return what was predicted of each part, and what it takes now."""
    blocks_bytes = report.num_gpu_blocks * report.block_bytes
    held_bytes = worker.device.memory.used_bytes + torch.cuda.memory_reserved()
    return {
        "weights, cache and activations": (
            report.weights_bytes + report.peak_activation_bytes + blocks_bytes,
            held_bytes,
        ),
        "context, libraries and graphs": (
            report.non_torch_bytes + report.graph_bytes,
            worker.meter.own_bytes() - held_bytes,
        ),
    }


def _use_fully(worker: RankWorker, report: MemoryReport) -> None:
    for batch in profile_batches(
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_model_len=report.max_model_len,
        block_size=BLOCK_SIZE,
        num_groups=len(worker.layer_windows()),
    ):
        worker.execute_model(batch)
