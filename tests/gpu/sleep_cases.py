"""A worker that sleeps and wakes: the same answers to the last bit, nothing lost, no harm to who came meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.results import AtLeast, AtMost, Row
from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.engine.batch import ModelOutput
from dormouse_worker.executor.testing import start
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.answers import answer
from tests.gpu.device_kit import MIB, Kit

BLOCK_SIZE = 16
NUM_CYCLES = 20
NUM_TOKENS = 12
LEVELS = (1, 2)
PROMPTS = [[(7 * i * i + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 6, 17, 40))]


def cycles(kit: Kit, num_cycles: int = NUM_CYCLES) -> list[Row]:
    """Sleep and wake often at each level, answering between; most steps of an answer are replays of graphs."""
    with _serving(kit) as worker:
        expected = _answer(worker)
        return [row for level in LEVELS for row in _cycles(kit, worker, (level, num_cycles), expected)]


def _cycles(kit: Kit, worker: RankWorker, how: tuple[int, int], expected: list[ModelOutput]) -> list[Row]:
    level, num_cycles = how
    num_wrong = 0
    asleep: list[tuple[int, int]] = []
    awake: list[tuple[int, int]] = []
    for _ in range(num_cycles):
        worker.sleep(level, TAGS)
        asleep.append(_held(kit, worker))
        worker.wake_up(TAGS)
        num_wrong += _answer(worker) != expected
        awake.append(_held(kit, worker))
    device_drift, pinned_drift = (
        max(abs(last[kind] - first[kind]) for first, last in ((asleep[0], asleep[-1]), (awake[0], awake[-1])))
        for kind in (0, 1)
    )
    what = f"{num_cycles} cycles at level {level}"
    return [
        Row(f"{what}: answers that differ in a bit", num_wrong, "", goal=AtMost(0)),
        Row(f"{what}: drift of device memory", device_drift, "bytes", goal=AtMost(0)),
        Row(f"{what}: drift of pinned memory", pinned_drift, "bytes", goal=AtMost(0)),
        Row(f"{what}: given back by a sleep", (awake[-1][0] - asleep[-1][0]) / MIB, "MiB"),
    ]


def neighbour_takes_all(kit: Kit) -> list[Row]:
    """Let another process take what a sleep gave back: the wake is refused with numbers, and succeeds later."""
    with _serving(kit) as worker, kit.neighbour() as neighbour:
        expected = _answer(worker)
        memory = worker.device.memory
        before_bytes = memory.free_bytes()
        worker.sleep(1, TAGS)
        freed_bytes = memory.free_bytes() - before_bytes
        neighbour.take(memory.free_bytes() - freed_bytes // 2)
        missing_bytes = worker.prepare_wake_up(TAGS)
        crowded_bytes = memory.free_bytes()
        refusal = _refusal(worker)
        leaked_bytes = crowded_bytes - memory.free_bytes()
        neighbour.give()
        still_missing_bytes = worker.prepare_wake_up(TAGS)
        worker.wake_up(TAGS)
        num_wrong = int(_answer(worker) != expected)
    share = missing_bytes / freed_bytes
    return [
        Row("crowded wake: missing bytes told, of those given back", share, "", goal=AtLeast(0.4)),
        Row("crowded wake: refused as a lack of memory", float(bool(refusal)), "", goal=AtLeast(1)),
        Row("crowded wake: bytes kept by the refusal", leaked_bytes, "bytes", goal=AtMost(0)),
        Row("wake with the neighbour gone: bytes missing", still_missing_bytes, "bytes", goal=AtMost(0)),
        Row("wake with the neighbour gone: answers that differ in a bit", num_wrong, "", goal=AtMost(0)),
    ]


def _refusal(worker: RankWorker) -> str:
    """Return the words with which a wake is refused for a lack of memory; "" if it is not."""
    try:
        worker.wake_up(TAGS)
    except InsufficientMemory as error:
        return str(error)
    return ""


@contextmanager
def _serving(kit: Kit) -> Iterator[RankWorker]:
    """Start a worker with a model that is large enough to be seen among the device's memory."""
    dtype = str(kit.scale.dtype).removeprefix("torch.")
    with tempfile.TemporaryDirectory() as folder:
        directory = write_tiny_model(Path(folder), "llama", **kit.scale.model)
        worker = kit.make_worker(
            directory,
            dtype=dtype,
            block_size=BLOCK_SIZE,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            kv_cache_memory_bytes=kit.scale.cache_bytes,
        )
        try:
            start(worker)
            yield worker
        finally:
            worker.shutdown()


def _answer(worker: RankWorker) -> list[ModelOutput]:
    return answer(worker, PROMPTS, NUM_TOKENS, block_size=BLOCK_SIZE)


def _held(kit: Kit, worker: RankWorker) -> tuple[int, int]:
    """Return the device memory in use, by whomever, and the pinned host memory of this worker."""
    kit.tidy()
    return -worker.device.memory.free_bytes(), kit.pinned_bytes(worker)
