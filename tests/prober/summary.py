"""What the records say: one line for each scenario, and the rows of the goals. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.results import AtLeast, AtMost, Row
from tests.prober.probe import Record
from tests.prober.verdicts import Verdict

WORKER_KILL = "worker killed"
GATEWAY_KILL = "gateway killed"
STARTS = ("warm", "level1", "level2", "cold")
LEAST_REQUESTS = 10_000
LEAST_STREAMS = 50
MAX_STALL_S = 2.0
LATE_S = 1.0  # a request that was sent so much later than planned was not sent as planned


class TooFew(Exception):
    """The run is too small to say whether a goal is reached."""


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one scenario."""

    scenario: str
    requests: int
    verdicts: Counter[Verdict]
    starts: Counter[str]
    migrated: int
    lost_tokens: int
    repeated_tokens: int
    first_p50_s: float
    first_max_s: float
    stall_max_s: float
    late: int  # sent more than LATE_S after their time

    @property
    def bad(self) -> int:
        """Return how many did not get their answer, or not as it should be."""
        return self.requests - self.verdicts[Verdict.OK]


def line_of(scenario: str, records: Sequence[Record]) -> Line:
    """Sum up the records of one scenario, at least one."""
    findings = [record.finding for record in records if record.finding]
    firsts = sorted(record.first_s - record.due_s for record in records if record.first_s is not None)
    return Line(
        scenario=scenario,
        requests=len(records),
        verdicts=Counter(finding.verdict for finding in findings),
        starts=Counter(record.start for record in records),
        migrated=sum(record.is_migrated for record in records),
        lost_tokens=sum(finding.lost for finding in findings),
        repeated_tokens=sum(finding.repeated for finding in findings),
        first_p50_s=firsts[len(firsts) // 2] if firsts else 0.0,
        first_max_s=firsts[-1] if firsts else 0.0,
        stall_max_s=max((record.stall_s for record in records), default=0.0),
        late=sum(record.late_s > LATE_S for record in records),
    )


def lines_of(records: Iterable[Record]) -> list[Line]:
    """Return the lines of all scenarios, in the order in which they began."""
    by_scenario: dict[str, list[Record]] = {}
    for record in records:
        by_scenario.setdefault(record.scenario, []).append(record)
    return [line_of(scenario, mine) for scenario, mine in by_scenario.items()]


def lost_row(records: Iterable[Record]) -> Row:
    """Return the row of what may not lose a request. Raises TooFew.

    Requests of the killed gateway are not among them: those that it served end with it, by the goal.
    """
    counted = [record for record in records if record.scenario != GATEWAY_KILL]
    if len(counted) < LEAST_REQUESTS:
        raise TooFew(f"{len(counted)} requests; at least {LEAST_REQUESTS} must be asked")
    bad = sum(not _is_ok(record) for record in counted)
    return Row("lost or duplicated requests", bad, f"of {len(counted):,} requests", goal=AtMost(0))


def worker_kill_rows(records: Sequence[Record], was_running: Sequence[Record]) -> list[Row]:
    """Return the rows of a killed worker: what was lost, and how long a stream stood still. Raises TooFew.

    `was_running` are the streams under way when it was killed.
    """
    if len(was_running) < LEAST_STREAMS:
        raise TooFew(f"{len(was_running)} streams ran when the worker was killed; at least {LEAST_STREAMS} must")
    if not any(record.is_migrated for record in was_running):
        raise TooFew("none of the streams migrated: the worker that was killed had none")
    what = "SIGKILL of one of two workers under 50 streams"
    bad = sum(not _is_ok(record) for record in records)
    stall_s = max(record.stall_s for record in was_running)
    return [
        Row(f"{what}: lost or wrong", bad, f"of {len(records):,} requests", goal=AtMost(0)),
        Row(f"{what}: longest stall", stall_s, "s", goal=AtMost(MAX_STALL_S)),
    ]


def gateway_kill_rows(records: Sequence[Record], killed: str) -> list[Row]:
    """Return the rows of a killed gateway: whose requests failed at first, and what one retry made of it.

    `killed` is the name of its doors. Raises TooFew if it had no request under way.
    """
    failed = [record for record in records if record.first_code != "OK"]
    if not failed:
        raise TooFew("no request failed when the gateway was killed: it had none")
    what = "SIGKILL of one of two gateways"
    strange = sum(record.door != killed for record in failed)
    ok = 100 * sum(_is_ok(record) for record in records) / len(records)
    return [
        Row(f"{what}: failures on the other's connections", strange, f"of {len(failed):,} failures", goal=AtMost(0)),
        Row(f"{what}: answered with one client retry", ok, f"% of {len(records):,} requests", goal=AtLeast(99)),
    ]


def failures(records: Iterable[Record], at_most: int = 20) -> list[str]:
    """Return a sentence for each of the first requests that are not OK."""
    bad = [record for record in records if not _is_ok(record)]
    return [
        f"{record.scenario}: {record.model} at {record.due_s:.3f} s: "
        f"{record.finding.verdict if record.finding else 'running'}, {record.code} after "
        f"{record.last_s - record.due_s:.3f} s{f' ({record.message})' if record.message else ''}"
        for record in bad[:at_most]
    ] + ([f"and {len(bad) - at_most} more"] if len(bad) > at_most else [])


def print_lines(lines: Sequence[Line], console: Console) -> None:
    """Print a line for each scenario and one for all."""
    table = Table("scenario", box=None, pad_edge=False)
    for column in ("requests", "ok", "lost", "wrong", *STARTS, "migrated", "first p50", "first max", "stall", "late"):
        table.add_column(column, justify="right")
    for line in lines:
        ok, lost = line.verdicts[Verdict.OK], line.verdicts[Verdict.LOST]
        counts = [line.requests, ok, lost, line.bad - lost, *(line.starts[start] for start in STARTS), line.migrated]
        seconds = [f"{value:.2f} s" for value in (line.first_p50_s, line.first_max_s, line.stall_max_s)]
        table.add_row(line.scenario, *(f"{number:,}" for number in counts), *seconds, f"{line.late:,}")
    console.print(table)
    total, bad = sum(line.requests for line in lines), sum(line.bad for line in lines)
    console.print(f"{total:,} requests, {bad:,} lost, duplicated or wrong")


def _is_ok(record: Record) -> bool:
    return record.finding is not None and record.finding.is_ok
