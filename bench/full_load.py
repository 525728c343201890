"""How well a worker's report predicts what it holds: a real worker on the CPU, every block of its cache in use.

Predicted are the report's shares with the agreed cache; used is the engine's highest resident memory while requests
fill the cache in the largest batches, and the front's.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench.helpers import Helper, Job
from bench.models import SHAPES, ensure_model
from bench.options import Options
from bench.sleep_figures import Load
from bench.worker import MAX_BLOCKS, Worker
from bench.workload import Request, make_workload
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.host import Host

MODEL = "small"
CACHE = "192Mi"
NUM_SEQS, BATCH_TOKENS = 16, 512


def measure_load(options: Options, console: Console) -> Load:
    """Start a worker, fill its cache and compare."""
    flags = ["--kv-cache-memory", CACHE, "--threads", str(options.threads), "--max-num-seqs", str(NUM_SEQS)]
    worker = Worker(ensure_model(MODEL), flags=[*flags, "--max-num-batched-tokens", str(BATCH_TOKENS)])
    try:
        report = _open(worker)
        engine = _engine_of(worker.process.pid)
        Path(f"/proc/{engine}/clear_refs").write_text("5")  # the highest resident memory begins anew
        with Helper("bench.client") as client:
            client.run(Job(_requests(report), port=worker.port))
        used_bytes = _peak_bytes(engine) + Host().resident_bytes(worker.process.pid)
    finally:
        worker.close()
    cache_bytes = min(report.num_gpu_blocks, MAX_BLOCKS) * report.block_bytes
    shares = report.weights_bytes + report.peak_activation_bytes + report.non_torch_bytes
    load = Load(shares + cache_bytes, used_bytes)
    console.print(f"  full load: {load}, error {load.error_percent:.2f} %", highlight=False)
    return load


def _open(worker: Worker) -> control.MemoryReport:
    for status in worker.statuses():
        if status.state == control.WORKER_STATE_PROFILED:
            worker.initialize_cache(status.report)
            return status.report
    raise RuntimeError("the worker ended before it was profiled")


def _requests(report: control.MemoryReport) -> tuple[Request, ...]:
    """Return requests that share nothing and need every block: what ended stays cached, and nothing is evicted."""
    capacity = min(report.num_gpu_blocks, MAX_BLOCKS) * report.block_size
    drawn = make_workload("W1", vocab_size=SHAPES[MODEL].vocab_size, count=NUM_SEQS * 8).requests
    taken: list[Request] = []
    num_tokens = 0
    for request in drawn:
        if num_tokens >= capacity:
            break
        taken.append(Request(request.id, request.prompt, 4))
        num_tokens += len(request.prompt)
    return tuple(taken)


def _engine_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _peak_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) << 10
