"""What the ranks of one replica reported, as one: all must be there and alike, the least holds for all. Pure.

A replica with one rank has one report, and nothing here changes it. The leader of more ranks tells of each of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from dormouse_operator.model import Group, Report, Worker

MAX_BLOCKS = 2**31 - 1  # numbers of blocks are 32-bit integers in the block tables


class Flaw(NamedTuple):
    """What is wrong with the reports of a replica: the reason of a condition, and the words for it."""

    reason: str
    words: str


def reports_of(worker: Worker) -> tuple[Report, ...]:
    """Return the report of each rank that has one, by rank."""
    single = (worker.report,) if worker.report else ()
    return tuple(sorted(worker.rank_reports, key=lambda report: report.rank)) or single


def whole(worker: Worker) -> Report | None:
    """Return what holds for the replica: the report of the rank with the fewest blocks; None while there is none.

    It keeps a cache if one of its ranks does.
    """
    reports = reports_of(worker)
    if len(reports) < 2:
        return reports[0] if reports else None
    least = min(reports, key=lambda report: (report.num_gpu_blocks, report.rank))
    has_cache = any(report.has_cache for report in reports)
    return replace(least, num_cpu_blocks=min(report.num_cpu_blocks for report in reports), has_cache=has_cache)


def flaw_of(group: Group, worker: Worker) -> Flaw | None:
    """Return why the reports do not count, None if they do or there are none yet."""
    reports = reports_of(worker)
    if not reports:
        return None
    if group.leader.num_ranks == 1:
        words = impossible(reports[0])
        return Flaw("ReportOutOfBounds", words) if words else None
    return _wrong_ranks(group, reports) or _other_blocks(group, reports) or _impossible(group, reports)


def impossible(report: Report) -> str:
    """Return which number of a report is impossible, "" if none is. No block at all is a small memory, not a flaw."""
    if not 0 <= report.num_gpu_blocks <= MAX_BLOCKS:
        return f"numGpuBlocks is {report.num_gpu_blocks}; possible are 0 to {MAX_BLOCKS}"
    if not 0 <= report.num_cpu_blocks <= MAX_BLOCKS:
        return f"numCpuBlocks is {report.num_cpu_blocks}; possible are 0 to {MAX_BLOCKS}"
    if report.block_size <= 0:
        return f"blockSize is {report.block_size}; possible is 1 token or more"
    if report.num_gpu_blocks * report.block_bytes > report.total_bytes > 0:
        needed = report.num_gpu_blocks * report.block_bytes
        return f"{report.num_gpu_blocks} blocks need {needed} bytes; the device has {report.total_bytes}"
    return ""


def where(group: Group, rank: int) -> str:
    """Return who a rank is, for people."""
    return f"rank {rank} (pod {group.pod_name(rank)})"


def _wrong_ranks(group: Group, reports: tuple[Report, ...]) -> Flaw | None:
    """Name the ranks that are missing, twice there, or none of the group's."""
    wanted, there = range(group.leader.num_ranks), Counter(report.rank for report in reports)
    if missing := [rank for rank in wanted if rank not in there]:
        names = ", ".join(where(group, rank) for rank in missing)
        return Flaw("RankMissing", f"{len(missing)} of {len(wanted)} ranks have not reported: {names}")
    if odd := next((rank for rank, count in there.items() if count > 1 or rank not in wanted), None):
        return Flaw("ReportOutOfBounds", f"rank {odd} is reported {there[odd]} times; ranks are 0 to {len(wanted) - 1}")
    return None


def _other_blocks(group: Group, reports: tuple[Report, ...]) -> Flaw | None:
    first = reports[0]
    other = next((report for report in reports if report.block_size != first.block_size), None)
    if other is None:
        return None
    words = f"{where(group, other.rank)} reports blocks of {other.block_size} tokens"
    return Flaw("BlockSizeDiffers", f"{words}, {where(group, first.rank)} of {first.block_size}")


def _impossible(group: Group, reports: tuple[Report, ...]) -> Flaw | None:
    told = next(((report, words) for report in reports if (words := impossible(report))), None)
    return Flaw("ReportOutOfBounds", f"{where(group, told[0].rank)}: {told[1]}") if told else None
