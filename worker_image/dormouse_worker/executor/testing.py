"""The kit for tests of workers, and a program that sleeps and wakes one again and again in a process of its own.

`python -m dormouse_worker.executor.testing MODEL_DIR ROUNDS` prints a JSON list with one object per round. What a sleep
gives back is measured as the process's resident memory, so whatever else a process did before would be measured too.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.cpu_worker import CpuWorker
from dormouse_worker.host import Host
from dormouse_worker.ipc import TAGS
from dormouse_worker.settings import EngineSettings

CACHE_BYTES = 64 << 20


def make_worker(directory: Path, host: Host | None = None, **overrides: object) -> CpuWorker:
    """Return a small worker with its device initialised."""
    fields: dict[str, object] = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 4, "threads": 1}
    settings = EngineSettings(model=str(directory), **{**fields, **overrides})  # type: ignore[arg-type]  # as tests say
    worker = CpuWorker(settings, 0, host)
    worker.init_device()
    return worker


def touch_cache(worker: CpuWorker) -> None:
    """Make every page of the cache resident, as use would."""
    assert worker._runner is not None  # noqa: SLF001  # the kit looks inside
    for layer in worker._runner.cache.pools:  # noqa: SLF001
        layer.key.fill_(1.0)
        layer.value.fill_(1.0)


def first_token(worker: CpuWorker) -> int:
    """Return the token that follows a fixed prompt."""
    batch = single(NewSequence("r", [5, 6, 7], [], make_sampling()), ([3],) * len(worker.layer_windows()))
    (sampled,) = worker.execute_model(batch).sampled
    return sampled.token_id


def sleep_and_wake(directory: Path, rounds: int) -> list[dict[str, int]]:
    """Return for each round what the sleep reported, the weights' size, and the first token before and after."""
    worker = make_worker(directory, kv_cache_memory_bytes=CACHE_BYTES)
    worker.load_model()
    worker.initialize_cache(*worker.determine_num_available_blocks())
    report = worker.get_memory_report()
    assert report is not None
    told = []
    for _ in range(rounds):
        before = first_token(worker)
        touch_cache(worker)
        slept = dataclasses.asdict(worker.sleep(2, TAGS))
        worker.wake_up(TAGS)
        told.append({**slept, "weights_bytes": report.weights_bytes, "before": before, "after": first_token(worker)})
    return told


if __name__ == "__main__":
    print(json.dumps(sleep_and_wake(Path(sys.argv[1]), int(sys.argv[2]))))
