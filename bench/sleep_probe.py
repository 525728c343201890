"""The measuring programs of `bench.sleep`: `python -m bench.sleep_probe PROGRAM MODEL_DIR NUMBER COUNT`.

Each does one thing in a process of its own and prints its answer as JSON in the last line. The worker is the one on the
fake device, which does what a GPU's does with host mappings of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import torch

from bench.sleep_figures import Cycle, Held
from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.host import Host, release_free_memory
from dormouse_worker.executor.testing import (
    FakeDeviceWorker,
    generate,
    holdings,
    host_copy_bytes,
    make_fake_worker,
    start,
    touch_cache,
)
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.host_driver import HostDriver

CACHE_BYTES = 128 << 20
SETTINGS: dict[str, Any] = {"kv_cache_memory_bytes": CACHE_BYTES, "threads": 0, "block_size": 16, "max_model_len": 1024}
CYCLES_TO_SETTLE = 5  # until libraries and allocator hold what they keep for ever
READ_BYTES = 32 << 20  # at once; larger pieces are no faster


def main() -> None:
    """Run one program."""
    name, directory, number, count = sys.argv[1:]
    programs: dict[str, Callable[[Path, int, int], Any]] = {
        "cycles": measure_cycles,
        "residue": measure_residue,
        "drift": measure_drift,
    }
    print(msgspec.json.encode(programs[name](Path(directory), int(number), int(count))).decode())


def measure_cycles(model: Path, level: int, count: int) -> list[Cycle]:
    """Sleep and wake so often, each time beside what a wake is compared with; the first, unmeasured, warms up."""
    worker = _start(model)
    peer = copying(worker) if level == 1 else _reading(model)
    return [_cycle(worker, level, peer) for _ in range(count + 1)][1:]


def measure_residue(model: Path, level: int, count: int) -> Held:
    """Return what a process holds asleep; level 0: after the imports and forward passes, the model's own included."""
    del count  # once
    worker = _start(model)
    generate(worker)
    copy_bytes = 0
    if level:
        touch_cache(worker)
        copy_bytes = worker.sleep(level, TAGS).host_copy_bytes
    release_free_memory()
    return _held(copy_bytes)


def measure_drift(model: Path, level: int, count: int) -> tuple[Held, Held]:
    """Return what a process holds asleep before and after so many cycles."""
    worker = _start(model)
    before = None
    for cycle in range(CYCLES_TO_SETTLE + count + 1):
        generate(worker)
        worker.sleep(level, TAGS)
        release_free_memory()
        after = _held()
        worker.wake_up(TAGS)
        if cycle == CYCLES_TO_SETTLE:
            before = after
    assert before is not None, "it has settled"
    return before, after


def _start(model: Path) -> FakeDeviceWorker:
    worker = make_fake_worker(model, **SETTINGS)
    start(worker)
    return worker


def _cycle(worker: FakeDeviceWorker, level: int, peer: Callable[[], float]) -> Cycle:
    touch_cache(worker)
    generate(worker)
    release_free_memory()
    report = worker.get_memory_report()
    assert report is not None, "it was profiled"
    host = Host()
    before_bytes = host.resident_bytes()
    copy_bytes = host_copy_bytes(worker)
    started_s = time.perf_counter()
    slept = worker.sleep(level, TAGS)
    sleep_s = time.perf_counter() - started_s
    copy_bytes -= slept.host_copy_bytes  # what of it left, too, is no device's
    fell_bytes = before_bytes - host.resident_bytes() - copy_bytes
    peer_s = peer()
    started_s = time.perf_counter()
    woke = worker.wake_up(TAGS)
    wake_s = time.perf_counter() - started_s
    cache_bytes = report.num_gpu_blocks * report.block_bytes
    phases = dict(slept.phases), dict(woke.phases)
    return Cycle(level, report.weights_bytes, cache_bytes, fell_bytes, sleep_s, wake_s, *phases, peer_s)


def copying(worker: RankWorker) -> Callable[[], float]:
    """Return a program that copies as many bytes as a wake copies into memory that nobody has touched."""
    report = worker.get_memory_report()
    assert report is not None, "it was profiled"
    source = torch.ones(report.weights_bytes, dtype=torch.uint8)  # the cache comes back zero, without a copy

    def copy() -> float:
        with closing(_fresh(len(source))) as arena:
            target = arena.tensor(0, source.shape, torch.uint8)
            started_s = time.perf_counter()
            target.copy_(source)
            return time.perf_counter() - started_s

    return copy


def _reading(model: Path) -> Callable[[], float]:
    """Return a program that reads the model's files into memory that nobody has touched."""
    files = sorted(model.glob("*.safetensors"))

    def read() -> float:
        with closing(_fresh(sum(file.stat().st_size for file in files))) as arena:
            view: Any = arena.tensor(0, (arena.size_bytes,), torch.uint8).numpy()
            started_s = time.perf_counter()
            for file in files:
                _read(file, memoryview(view))
            return time.perf_counter() - started_s

    return read


def _read(file: Path, target: memoryview) -> None:
    with file.open("rb", buffering=0) as opened:
        position = 0
        while num_bytes := os.readv(opened.fileno(), [target[position : position + READ_BYTES]]):
            position += num_bytes


def _fresh(num_bytes: int) -> Arena:
    """Return mapped huge pages that nobody has touched."""
    arena = Arena("peer", HostDriver(Host().available_bytes), num_bytes)
    arena.prepare(num_bytes)
    arena.map()
    return arena


def _held(copy_bytes: int = 0) -> Held:
    return Held(**holdings(), host_copy_bytes=copy_bytes)


if __name__ == "__main__":
    main()
