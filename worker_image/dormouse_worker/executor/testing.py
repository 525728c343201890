"""The kit for tests of workers: one on the device that is not there, builders, and a program that sleeps and wakes.

`python -m dormouse_worker.executor.testing MODEL_DIR DEVICE [LEVEL …]` does so in a process of its own, once for each
level, and prints a JSON list with one object for each. What a sleep gives back is measured as the process's resident
memory, so whatever else a process did before would be measured too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.device.testing import FakeDevice, FakeTokenCopy
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.parallel.communicator import Communicator
from dormouse_worker.model.promised_tokens import TokenCopier

CACHE_BYTES = 16 << 20


class FakeDeviceWorker(RankWorker):
    """A `RankWorker` on a `FakeDevice`: what a GPU's worker does, but for the GPU."""

    def __init__(
        self,
        settings: EngineSettings,
        rank: int,
        host: Host | None = None,
        device: FakeDevice | None = None,
        *,
        communicator: Communicator | None = None,
    ) -> None:
        super().__init__(settings, rank, host, communicator=communicator)
        self.fake = device or FakeDevice(host=self.host)

    def make_device(self) -> FakeDevice:
        """See `DeviceWorker`."""
        return self.fake

    def make_token_copier(self) -> TokenCopier:
        """See `RankWorker`."""
        return FakeTokenCopy


def make_settings(directory: Path, **overrides: Any) -> EngineSettings:
    """Return the settings of a small worker."""
    fields: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 4, "threads": 1}
    return EngineSettings(model=str(directory), **{**fields, **overrides})


def make_worker(directory: Path, host: Host | None = None, **overrides: Any) -> CpuWorker:
    """Return a small worker on the CPU with its device initialised."""
    worker = CpuWorker(make_settings(directory, **overrides), 0, host)
    worker.init_device()
    return worker


def make_fake_worker(
    directory: Path, device: FakeDevice | None = None, host: Host | None = None, **overrides: Any
) -> FakeDeviceWorker:
    """Return a small worker on the fake device, initialised."""
    worker = FakeDeviceWorker(make_settings(directory, **overrides), 0, host, device)
    worker.init_device()
    return worker


def start(worker: RankWorker) -> None:
    """Load, profile and allocate what the profile says."""
    worker.load_model()
    worker.initialize_cache(*worker.determine_num_available_blocks())


def touch_cache(worker: RankWorker) -> None:
    """Make every page of the cache resident, as use would."""
    for pool in cache_of(worker).by_block():
        pool.fill_(1.0)


def cache_of(worker: RankWorker) -> KVCache:
    """Return the cache on the device."""
    assert worker._allocation is not None  # noqa: SLF001  # the kit looks inside
    return worker._allocation._cache.cache  # noqa: SLF001


def host_copy_bytes(worker: RankWorker) -> int:
    """Return the host memory that holds a copy of the weights now."""
    assert worker._model is not None  # noqa: SLF001  # the kit looks inside
    return worker._model.weights.host_copy_bytes  # noqa: SLF001


def generate(worker: RankWorker, prompt: Sequence[int] = (5, 6, 7), num_tokens: int = 1, **sampling: Any) -> list[int]:
    """Return the tokens that follow a prompt, computed alone, in blocks from 3 on."""
    num_groups = len(worker.layer_windows())
    block_size = worker.settings.block_size
    known, start = list(prompt), 0
    width = -(-(len(known) + num_tokens) // block_size)
    tables = tuple(list(range(3 + group * width, 3 + (group + 1) * width)) for group in range(num_groups))
    parameters = make_sampling(**{"max_tokens": num_tokens, **sampling})
    while len(known) < len(prompt) + num_tokens:
        sequence = NewSequence("r", list(prompt), known[len(prompt) :], parameters)
        (sampled,) = worker.execute_model(single(sequence, tables, start=start)).sampled
        start = len(known)
        known.append(sampled.token_id)
    return known[len(prompt) :]


def sleep_and_wake(directory: Path, device: str, levels: Sequence[int]) -> list[dict[str, int]]:
    """Return for each sleep what it reported, what the process held then, and the first token before and after.

    Without levels one object only: what a process holds that has imported everything and computed once.
    """
    make = make_worker if device == "cpu" else make_fake_worker
    worker = make(directory, kv_cache_memory_bytes=CACHE_BYTES)
    start(worker)
    report = worker.get_memory_report()
    assert report is not None
    told = []
    for level in levels:
        (before,) = generate(worker)
        touch_cache(worker)
        slept = worker.sleep(level, TAGS)
        asleep = holdings()
        worker.wake_up(TAGS)
        (after,) = generate(worker)
        sizes = {
            "freed_bytes": slept.freed_bytes,
            "host_copy_bytes": slept.host_copy_bytes,
            "weights_bytes": report.weights_bytes,
        }
        told.append({**sizes, **asleep, "before": before, "after": after})
    return told or [holdings()]


def holdings() -> dict[str, int]:
    """Return what this process holds of the system."""
    (anonymous_kib,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {
        "resident_bytes": Host().resident_bytes(),
        "anonymous_bytes": int(anonymous_kib) << 10,
        "num_files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "num_threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
    }


if __name__ == "__main__":
    model, kind, *numbers = sys.argv[1:]
    print(json.dumps(sleep_and_wake(Path(model), kind, [int(level) for level in numbers])))
