"""A stand-in GPU that two workers share changes hands: how fast the bytes come, and what its books say of it.

Two workers with a random model of about 1 GB; the device has room for one of them awake. One sleeps at level 1 and the
other wakes, in turns, each time beside one memcpy of the same bytes into fresh huge pages in the same process, so that
what disturbs one disturbs both, and the middle pair counts. Sleeping copies nothing: host copies stay.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console

from bench.helpers import environment
from bench.options import Options, main
from bench.results import AtMost, RatioAtLeast, Row
from bench.sleep import LARGE, random_model
from dormouse_worker.common.stand_in import DEVICES_VARIABLE
from dormouse_worker.model.device.ledger import Marks
from dormouse_worker.model.device.ledger_file import offer_device, read_usage

DEVICE_BYTES = 1536 << 20  # of two models of 1 GB there is room for one
PAIRS_PER_REP = 3


class Switch(msgspec.Struct, frozen=True):
    """One change of hands, and what its copy is compared with."""

    copied_bytes: int
    sleep_s: float
    copy_s: float  # until the weights are back
    verify_s: float
    wake_s: float
    peer_s: float

    def __str__(self) -> str:
        return (
            f"asleep in {1e3 * self.sleep_s:.1f} ms, {self.copied_bytes / 1e9:.2f} GB copied in "
            f"{1e3 * self.copy_s:.0f} ms (peer {1e3 * self.peer_s:.0f} ms, ratio {self.peer_s / self.copy_s:.2f}), "
            f"awake after {1e3 * self.wake_s:.0f} ms"
        )


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    with random_model(LARGE) as model, tempfile.TemporaryDirectory(prefix="dormouse-bench-") as directory:
        folder = Path(directory) / "gpu-0"
        offer_device(folder, DEVICE_BYTES)
        command = [sys.executable, "-m", "bench.switch_probe", str(model), str(PAIRS_PER_REP * options.reps)]
        env = {**environment(), DEVICES_VARIABLE: directory}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
        switches = msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Switch])
        for switch in switches:
            console.print(f"  {switch}", highlight=False)
        return [*switch_rows(switches), *mark_rows(read_usage(folder).marks)]


def switch_rows(switches: Sequence[Switch]) -> list[Row]:
    """Return the rows of the times; the copy is that of the pair with the middle ratio."""
    pair = sorted(switches, key=lambda switch: switch.copy_s / switch.peer_s)[len(switches) // 2]
    ours, peer = (pair.copied_bytes / 1e9 / seconds for seconds in (pair.copy_s, pair.peer_s))
    goal = RatioAtLeast(0.85)
    return [
        Row("switch, level 1: its copy; peer: one memcpy into fresh huge pages", ours, "GB/s", peer, goal),
        Row("switch, level 1: the sleep", 1e3 * median(switch.sleep_s for switch in switches), "ms"),
        Row("switch, level 1: verified by a pass", 1e3 * median(switch.verify_s for switch in switches), "ms"),
        Row("switch, level 1: the wake as a whole", 1e3 * median(switch.wake_s for switch in switches), "ms"),
    ]


def mark_rows(marks: Marks) -> list[Row]:
    """Return the rows of what the device's books saw meanwhile."""
    return [
        Row("switch: bytes wanted above the device's size", marks.over_size_bytes, "bytes", goal=AtMost(0)),
        Row("switch: workers awake at once", marks.most_awake, "workers", goal=AtMost(1)),
    ]


if __name__ == "__main__":
    main("switch", __doc__, measure)
