"""What the measuring programs of `bench.sleep` answer, and the rows that follow from it. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from bench.results import AtLeast, AtMost, RatioAtMost, Row

UNVERIFIED = "verify"  # the phase that computes; all others only move memory


class Cycle(msgspec.Struct, frozen=True):
    """One sleep and one wake, and what they are compared with in the same process."""

    level: int
    weights_bytes: int
    cache_bytes: int
    fell_bytes: int  # by which resident memory fell
    sleep_s: float
    wake_s: float
    sleep_phases: dict[str, float]  # seconds
    wake_phases: dict[str, float]
    peer_s: float  # level 1: one memcpy of the same bytes into fresh huge pages; level 2: reading the file into such

    @property
    def num_bytes(self) -> int:
        """Return what leaves and returns."""
        return self.weights_bytes + self.cache_bytes

    @property
    def back_s(self) -> float:
        """Return the time until the memory is back, before the forward pass that verifies it."""
        return sum(seconds for phase, seconds in self.wake_phases.items() if phase != UNVERIFIED)

    def __str__(self) -> str:
        return (
            f"level {self.level}: {100 * self.fell_bytes / self.num_bytes:.1f} % of {self.num_bytes / 1e9:.2f} GB gone "
            f"in {1e3 * self.sleep_s:.1f} ms, back in {1e3 * self.back_s:.0f} ms (peer {1e3 * self.peer_s:.0f} ms, "
            f"ratio {self.back_s / self.peer_s:.2f}), verified after {1e3 * self.wake_s:.0f} ms"
        )


class Held(msgspec.Struct, frozen=True):
    """What a process holds of the system."""

    resident_bytes: int
    num_files: int
    num_threads: int
    host_copy_bytes: int = 0  # of the resident bytes


class Load(msgspec.Struct, frozen=True):
    """What a report predicted for a worker under full load, and what front and engine then held at the most."""

    predicted_bytes: int
    used_bytes: int

    @property
    def error_percent(self) -> float:
        """Return by how much of the prediction it was wrong, either way."""
        return 100 * abs(self.used_bytes - self.predicted_bytes) / self.predicted_bytes

    def __str__(self) -> str:
        return f"predicted {self.predicted_bytes / 1e6:,.0f} MB, used {self.used_bytes / 1e6:,.0f} MB"


def cycle_rows(cycles: Mapping[int, Sequence[Cycle]]) -> list[Row]:
    """Return the rows of sleeps and wakes, by level; medians, the peer's time that of its pair."""
    rows = []
    for level, some in sorted(cycles.items()):
        rows += _level_rows(level, some)
    return rows


def _level_rows(level: int, cycles: Sequence[Cycle]) -> list[Row]:
    name = f"level {level}"
    gone = _median(cycles, lambda cycle: 100 * cycle.fell_bytes / cycle.num_bytes)
    per_gb = _median(cycles, lambda cycle: 1e3 * cycle.sleep_s / (cycle.num_bytes / 1e9))
    pair = _median_pair(cycles)
    goal = RatioAtMost(1.2 if level == 1 else 1.5)
    peer = "one memcpy into fresh huge pages" if level == 1 else "reading the file into memory"
    rows = [
        Row(f"sleep {name}: share of weights and cache that leaves resident memory", gone, "%", goal=AtLeast(95)),
        Row(f"sleep {name}, per GB", per_gb, "ms/GB", goal=AtMost(50)),
        Row(f"wake {name}, until the memory is back; peer: {peer}", 1e3 * pair.back_s, "ms", 1e3 * pair.peer_s, goal),
        Row(f"wake {name}, verified", _median(cycles, lambda cycle: 1e3 * cycle.wake_s), "ms"),
    ]
    for what, phases in (
        ("sleep", median_phases(cycles, "sleep_phases")),
        ("wake", median_phases(cycles, "wake_phases")),
    ):
        rows += [Row(f"{what} {name}, phase {phase}", 1e3 * seconds, "ms") for phase, seconds in phases.items()]
    return rows


def median_phases(cycles: Sequence[Cycle], which: str) -> dict[str, float]:
    """Return each phase's median in seconds, in the order of the first cycle."""
    return {name: median(getattr(cycle, which)[name] for cycle in cycles) for name in getattr(cycles[0], which)}


def residue_rows(reference: Held, asleep: Mapping[int, Held]) -> list[Row]:
    """Return the rows of what sleeping processes hold beside one that only imported and computed once."""
    peer = reference.resident_bytes / 1e6
    names = {1: "level 1, without the host copy", 2: "level 2"}
    return [
        Row(
            f"residue asleep, {names[level]}; peer: imports and one forward pass",
            (held.resident_bytes - held.host_copy_bytes) / 1e6,
            "MB",
            peer,
            RatioAtMost(1.05),
        )
        for level, held in sorted(asleep.items())
    ]


def drift_rows(num_cycles: int, before: Held, after: Held) -> list[Row]:
    """Return the rows of many cycles; a process that holds less than before has drifted, too."""
    name = f"{num_cycles} sleep/wake cycles"
    memory = 100 * abs(after.resident_bytes - before.resident_bytes) / before.resident_bytes
    return [
        Row(f"{name}: drift of resident memory", memory, "%", goal=AtMost(1)),
        Row(f"{name}: drift of open files", abs(after.num_files - before.num_files), "files", goal=AtMost(0)),
        Row(f"{name}: drift of threads", abs(after.num_threads - before.num_threads), "threads", goal=AtMost(0)),
    ]


def load_row(load: Load) -> Row:
    """Return the row of the profile's error."""
    return Row("profile error, predicted against used at full load", load.error_percent, "%", goal=AtMost(5))


def _median(cycles: Sequence[Cycle], figure: Callable[[Cycle], float]) -> float:
    return median(map(figure, cycles))


def _median_pair(cycles: Sequence[Cycle]) -> Cycle:
    """Return the cycle with the middle ratio: both times of a pair were taken under the same disturbances."""
    return sorted(cycles, key=lambda cycle: cycle.back_s / cycle.peer_s)[len(cycles) // 2]
