"""How much of the processor other programs take while we measure, from the kernel's counters.

All programs' time (/proc/stat) less that of this process and everything that it has started (/proc/PID/stat).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor seconds since the machine's start, and when they were read."""

    all_s: float
    own_s: float
    at_s: float

    def cores_of_others(self, later: Reading) -> float:
        """Return how many cores others kept busy until then, on average; counters are coarse: never below 0."""
        others_s = (later.all_s - self.all_s) - (later.own_s - self.own_s)
        return max(0.0, others_s / (later.at_s - self.at_s))


def read(proc: Path = PROC) -> Reading:
    """Return the counters now."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    total = parse_busy_ticks((proc / "stat").read_text("utf-8"))
    own = sum(parse_ticks(stat) for stat in stats_below(os.getpid(), proc).values())
    return Reading(total / ticks_per_s, own / ticks_per_s, time.monotonic())


def parse_busy_ticks(stat: str) -> int:
    """Return from the text of /proc/stat what all processors have worked: neither idle nor waiting for a disk."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, stat.split("\n", 1)[0].split()[1:])
    return user + nice + system + irq + softirq + steal


def parse_ticks(stat: str) -> int:
    """Return from the text of /proc/PID/stat what a process and those that it has waited for have worked."""
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def stats_below(pid: int, proc: Path = PROC) -> dict[int, str]:
    """Return process id → text of /proc/PID/stat of a process and all below it that are there."""
    stats = {}
    for file in proc.glob("[0-9]*/stat"):
        try:
            stats[int(file.parent.name)] = file.read_text("utf-8")
        except OSError:  # it has ended
            continue
    parents = {pid: int(stat.rpartition(")")[2].split()[1]) for pid, stat in stats.items()}
    return {one: stat for one, stat in stats.items() if _is_below(one, pid, parents)}


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor
