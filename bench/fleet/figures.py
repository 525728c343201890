"""What the parts of the benchmark found, and the rows and the picture's curves that follow. Measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.results import AtMost, Row
from dormouse_cli.load.figures import percentile

PEER_COUNT, PEER_S = 1000, 258.0  # KubeRay's published figure: 1,000 clusters, on a cluster of machines


@dataclass(frozen=True, slots=True)
class Burst:
    """Deployments applied at once."""

    applied_s: Sequence[float]  # when each create was answered, from the first request on
    pods_ready_s: Sequence[float]
    ready_s: Sequence[float]
    writes: Mapping[str, int]  # of the operator, by kind
    num_reads: float
    cpu_s: float

    @property
    def count(self) -> int:
        """Return how many there were."""
        return len(self.ready_s)

    def __str__(self) -> str:
        return (
            f"{self.count:,} Ready after {max(self.ready_s):.1f} s (applied {max(self.applied_s):.1f} s, "
            f"median Ready {median(self.ready_s):.1f} s); writes {describe_writes(self.writes, self.count)}"
        )


@dataclass(frozen=True, slots=True)
class Rest:
    """Deployments where nothing happens."""

    count: int
    seconds: float
    resident_bytes: int
    writes: Mapping[str, int]
    num_reads: float
    cpu_s: float

    def __str__(self) -> str:
        reads = f"{60 * self.num_reads / self.seconds:.1f} reads/min"
        return (
            f"{self.count:,} at rest for {self.seconds:.0f} s: {self.resident_bytes / 2**20:.0f} MiB, "
            f"{100 * self.cpu_s / self.seconds:.2f} % of a core, {reads}, writes {describe_writes(self.writes, 1)}"
        )


@dataclass(frozen=True, slots=True)
class Handover:
    """One leader's end."""

    taken_s: float  # until the other held the lease
    acts_s: float  # until the other had acted on a change

    def __str__(self) -> str:
        return f"lease taken after {self.taken_s:.2f} s, acts after {self.acts_s:.2f} s"


def describe_writes(writes: Mapping[str, int], count: int) -> str:
    """Return what was written how often for each of so many objects, the most frequent first."""
    parts = (f"{number / count:.2f} {what}" for what, number in Counter(writes).most_common())
    return ", ".join(parts) or "none"


def burst_rows(burst: Burst) -> list[Row]:
    """Return the rows of a burst; the peer stands beside as many deployments as its own figure is of."""
    peer_s = PEER_S if burst.count == PEER_COUNT else None
    whole = f"{burst.count:,} InferenceDeployments applied at once, until all are Ready"
    writes = sum(burst.writes.values()) / burst.count
    return [
        Row(whole, max(burst.ready_s), "s", peer=peer_s, goal=AtMost(120)),
        Row("per deployment, start to Ready: API writes", writes, "writes", goal=AtMost(15)),
        Row("per deployment, start to Ready: operator CPU", 1e3 * burst.cpu_s / burst.count, "ms", goal=AtMost(60)),
        Row("per deployment, start to Ready: API reads", burst.num_reads / burst.count, "reads"),
    ]


def rest_rows(rest: Rest) -> list[Row]:
    """Return the rows of rest."""
    name = f"{rest.count:,} at rest"
    writes = 60 * sum(rest.writes.values()) / rest.seconds
    return [
        Row(f"{name}: operator resident memory", rest.resident_bytes / 2**20, "MiB", goal=AtMost(250)),
        Row(f"{name}: API writes but the Lease", writes, "writes/min", goal=AtMost(0)),
        Row(f"{name}: operator CPU", 100 * rest.cpu_s / rest.seconds, "% of a core", goal=AtMost(2)),
        Row(f"{name}: API reads", 60 * rest.num_reads / rest.seconds, "reads/min"),
    ]


def change_rows(count: int, changes_s: Sequence[float]) -> list[Row]:
    """Return the rows of spec changes one at a time."""
    name = f"spec change to last child updated, one of {count:,}"
    return [
        Row(f"{name}, p99", 1e3 * percentile(changes_s, 99), "ms", goal=AtMost(1000)),
        Row(f"{name}, median", 1e3 * percentile(changes_s, 50), "ms"),
    ]


def ready_rows(count: int, reports_s: Sequence[float], starts_s: Sequence[float]) -> list[Row]:
    """Return the rows of new deployments one at a time."""
    name = "pod Ready to deployment Ready, one at a time"
    return [
        Row(f"{name}, p99", 1e3 * percentile(reports_s, 99), "ms", goal=AtMost(500)),
        Row(f"{name}, median", 1e3 * percentile(reports_s, 50), "ms"),
        Row(f"applied to Ready, one beside {count:,}, median", 1e3 * percentile(starts_s, 50), "ms"),
    ]


def start_row(count: int, seconds: float) -> Row:
    """Return the row of the operator's start."""
    return Row(f"operator start with {count:,} objects, until it is in charge", seconds, "s", goal=AtMost(20))


def handover_rows(killed: Sequence[Handover], ended: Sequence[Handover]) -> list[Row]:
    """Return the rows of the leader's end; the worst counts."""
    rows = []
    for what, handovers, limit_s in (("killed", killed, 17), ("ended gracefully", ended, 2)):
        name = f"leader {what}, worst of {len(handovers)}"
        worst_s = max(one.acts_s for one in handovers)
        rows.append(Row(f"{name}: until the other acts", worst_s, "s", goal=AtMost(limit_s)))
        rows.append(Row(f"{name}: until the other holds the lease", max(one.taken_s for one in handovers), "s"))
    return rows
