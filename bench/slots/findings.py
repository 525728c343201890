"""What is found in the sandbox of pools, as it goes to the program outside, and its rows. Pure; times in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from bench.results import AtMost, Row
from dormouse_cli.load.figures import percentile

COUNTED = {"worlds", "kills", "calls"}  # units of what adds up


class Placing(msgspec.Struct, frozen=True):
    """Many pools and members that were applied at once."""

    num_pools: int
    num_members: int
    applied_s: float  # until the last was created
    placed_s: float  # until every member has a pod on a slot with a device, and rests
    writes: dict[str, int]  # of the operator, by kind
    resident_bytes: int
    cpu_s: float

    def __str__(self) -> str:
        return f"placed after {self.placed_s:.1f} s (applied after {self.applied_s:.1f} s), writes {self.writes}"

    @property
    def num_objects(self) -> int:
        """Return how many were applied."""
        return self.num_pools + self.num_members


class Campaign(msgspec.Struct, frozen=True):
    """What became of calls and devices while processes were killed."""

    seed: int
    longest_s: float  # that a call took which was answered
    killed: dict[str, int]  # by who and in which phase of a slot
    answered: int
    wrong: int  # answers with other tokens than all others
    again: dict[str, int]  # calls that a killed gateway ended, by its words; they were made again
    lost: dict[str, int]  # calls that ended otherwise
    most_awake: int  # workers on one device at once
    over_size_bytes: int  # wanted of a device above its size
    over_budget_bytes: int  # held above a budget

    def __str__(self) -> str:
        return (
            f"{sum(self.killed.values())} kills {self.killed}, {self.answered} answers, {self.wrong} wrong, "
            f"again {self.again}, lost {self.lost}; most awake {self.most_awake}, "
            f"over size {self.over_size_bytes}, over budget {self.over_budget_bytes}"
        )


class Switch(msgspec.Struct, frozen=True):
    """One request to a member that sleeps at level 1 while another has the slot."""

    total_s: float  # from the request to its first token
    sleep_s: float  # of the holder
    wake_s: float  # of who was called, its copy and its golden tokens in it
    start: str  # from where it came, as the gateway says

    def __str__(self) -> str:
        parts = f"asleep in {1e3 * self.sleep_s:.0f} ms, awake in {1e3 * self.wake_s:.0f} ms"
        return f"{self.start}: first token after {1e3 * self.total_s:.0f} ms, of which {parts}"

    @property
    def beyond_s(self) -> float:
        """Return what the request waited beyond both workers' own work."""
        return self.total_s - self.sleep_s - self.wake_s


def switch_rows(found: Sequence[Switch]) -> list[Row]:
    """Return the rows of switches. The goal is for what lies beyond the copy; nothing is taken off for that here."""
    total_ms, beyond_ms = [1e3 * one.total_s for one in found], [1e3 * one.beyond_s for one in found]
    where = "switch A→B, level 1, real workers and API server: request to first token"
    return [
        Row(f"{where}, p50", percentile(total_ms, 50), "ms", goal=AtMost(150)),
        Row(f"{where}, p95", percentile(total_ms, 95), "ms", goal=AtMost(400)),
        Row(f"{where}, beyond both workers' own work, p50", percentile(beyond_ms, 50), "ms"),
        Row(f"{where}: the sleep, p50", percentile([1e3 * one.sleep_s for one in found], 50), "ms"),
        Row(
            f"{where}: the wake with its golden tokens, p50", percentile([1e3 * one.wake_s for one in found], 50), "ms"
        ),
    ]


def placing_rows(found: Placing) -> list[Row]:
    """Return the rows of many pools at once."""
    each = found.num_members // found.num_pools
    where = f"{found.num_pools} pools of {each} members on fake nodes with published ResourceSlices, applied at once"
    writes = sum(found.writes.values())
    return [
        Row(f"{where}: all placed", found.placed_s, "s", goal=AtMost(120)),
        Row(f"{where}: writes for each pool and member", writes / found.num_objects, "", goal=AtMost(12)),
        Row(f"{where}: the operator's memory", found.resident_bytes / 2**20, "MiB", goal=AtMost(300)),
        Row(f"{where}: the operator's processor time", found.cpu_s, "s"),
    ]


def campaign_rows(found: Campaign) -> list[Row]:
    """Return the rows of the campaign."""
    kills = sum(found.killed.values())
    where = "kill -9 of fronts, engines, workers, operator and gateway at every step of switches, 6 members on 2 GPUs"
    return [
        Row(f"{where}: worlds", 1, "worlds"),
        Row(f"{where}: the last seed", found.seed, ""),
        Row(f"{where}: kills", kills, "kills"),
        *(Row(f"{where}: kills of {case}", count, "kills") for case, count in sorted(found.killed.items())),
        Row(f"{where}: answers", found.answered, "calls"),
        Row(f"{where}: workers awake on one slot", found.most_awake, "workers", goal=AtMost(1)),
        Row(f"{where}: bytes above a slot's size", found.over_size_bytes, "bytes", goal=AtMost(0)),
        Row(f"{where}: bytes above a budget", found.over_budget_bytes, "bytes", goal=AtMost(0)),
        Row(f"{where}: answers with wrong tokens", found.wrong, "calls", goal=AtMost(0)),
        Row(f"{where}: lost", sum(found.lost.values()), "calls", goal=AtMost(0)),
        Row(f"{where}: longest call", found.longest_s, "s"),
        Row(f"{where}: ended with a gateway, and asked again", sum(found.again.values()), "calls"),
    ]


def together(rows: Iterable[Row], recorded: Mapping[str, float]) -> list[Row]:
    """Return a campaign's rows with those of campaigns before it: counts add up, of all else the highest stays."""
    return [replace(row, ours=_joined(row, recorded.get(row.what, 0.0))) for row in rows]


def _joined(row: Row, before: float) -> float:
    return row.ours + before if row.unit in COUNTED else max(row.ours, before)
