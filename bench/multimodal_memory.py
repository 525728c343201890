"""What 1,000 images of 12 megapixels leave behind in a worker and its gateway: `--parts memory` of `multimodal`.

Each is another JPEG, sent over HTTP and answered with one token before the next. A process's memory is what it has
changed (dirty pages of `smaps_rollup`: those of files come and go as the machine pleases). What is kept for later
questions, 256 images at most, is full long before the 300th; from there on the median of all lines through two readings
counts (Theil and Sen): buffers of megabytes are there in one reading and not in the next. The model is small and
computes on one thread, its cache is touched at the start.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console

from bench import neighbours
from bench.front_door import NAME, Door, open_door
from bench.multimodal_http import ask, pictures
from bench.multimodal_model import write_model
from bench.options import Options
from bench.results import AtMost, Row
from bench.worker import Worker, ready_worker

NUM_IMAGES, WIDTH, HEIGHT = 1000, 4000, 3000
SETTLED = 0.3  # of the images, before the line begins
EVERY = 10  # images between readings
TOLD_EVERY = 100
GOAL = AtMost(4096)  # a page: a thousandth of what the smallest copy of an image takes
FLAGS = ("--kv-cache-memory", "64Mi", "--prefault-kv-cache", "--threads", "1")
DIRTY = re.compile(r"^(?:Shared|Private)_Dirty:\s+(\d+) kB$", re.MULTILINE)
PARTS = {
    "dormouse_worker": "front",
    "dormouse_worker.engine_process": "engine",
    "dormouse_worker.pictures.program": "process of images",
    "bench.front_door": "gateway",
}  # by the module that a process runs
OTHERS = "front's other processes"
Memory = Mapping[str, int]  # bytes by part


class Reading(NamedTuple):
    """The memory behind so many images."""

    num_images: int
    memory: Memory


def measure(options: Options, console: Console) -> list[Row]:
    """Return a row for each part of the system."""
    count = options.count or NUM_IMAGES
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder)) as (worker, door):
        readings: list[Reading] = []
        for number, picture in enumerate(islice(pictures(WIDTH, HEIGHT), count), 1):
            ask(door.http_port, f"default/{NAME}", picture, 1)
            if number % EVERY == 0:
                readings.append(Reading(number, read_memory((worker.process.pid, door.pid))))
            if number % TOLD_EVERY == 0:
                told = ", ".join(f"{part} {size / 2**20:.1f}" for part, size in readings[-1].memory.items())
                console.print(f"  {number} images: {told} MiB", highlight=False)
    return rows_of(readings, count)


@contextmanager
def _served(folder: Path) -> Iterator[tuple[Worker, Door]]:
    model = write_model(folder / "model", is_small=True)
    with ready_worker(model, flags=FLAGS) as worker, open_door(model.name, worker.port) as door:
        yield worker, door


def rows_of(readings: Sequence[Reading], count: int) -> list[Row]:
    """Return by how many bytes each part grows with an image, once all is as large as it is to become."""
    first = int(SETTLED * count)
    settled = [reading for reading in readings if reading.num_images >= first]
    where = f"{count:,} images of {WIDTH * HEIGHT // 10**6} megapixels, behind the first {first}"
    return [
        Row(
            f"memory of the {part}: bytes more with each of {where}",
            median(_slope(part, *pair) for pair in combinations(settled, 2)),
            "bytes/image",
            goal=GOAL,
        )
        for part in sorted({part for reading in settled for part in reading.memory})
    ]


def _slope(part: str, one: Reading, other: Reading) -> float:
    grown = other.memory.get(part, 0) - one.memory.get(part, 0)
    return grown / (other.num_images - one.num_images)


def read_memory(pids: Sequence[int], proc: Path = neighbours.PROC) -> Memory:
    """Return what these processes and all below them have changed in memory, by the part that they are."""
    memory: dict[str, int] = defaultdict(int)
    for pid in {below for ancestor in pids for below in neighbours.stats_below(ancestor, proc)}:
        try:
            command = (proc / str(pid) / "cmdline").read_text("utf-8").split("\0")
            rollup = (proc / str(pid) / "smaps_rollup").read_text("utf-8")
        except OSError:  # it has ended
            continue
        memory[part_of(command)] += 1024 * sum(map(int, DIRTY.findall(rollup)))
    return memory


def part_of(command: Sequence[str]) -> str:
    """Return what a process is to the system, by its command line."""
    module = command[command.index("-m") + 1] if "-m" in command else ""
    return PARTS.get(module, OTHERS)
