"""How many KV-cache blocks every replica holds: the minimum of all reports, and when a report counts. Pure.

    agreed = min(reports that count ∪ counts that are allocated already)

A report counts when the worker has not failed and it holds at least one block. (That it is of this pod and of these
settings is checked where workers are asked.) What is allocated already is a bound too: a larger cache would interrupt
workers that serve, so it comes only when all of them start anew. At the first start everybody who has a node is waited
for, but only so long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from dormouse_operator.model import Observed, Pod, Report, WorkerState

BLOCKS_AGREED = "BlocksAgreed"
WAITING_FOR_REPORTS = "WaitingForReports"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What every replica must hold, and why."""

    num_gpu_blocks: int
    num_cpu_blocks: int
    block_size: int
    reported: tuple[int, ...]  # by replica
    limiting_pod: str
    limiting_rank: int

    def __str__(self) -> str:
        """Return the sentence that users read."""
        least = min(self.reported)
        if self.num_gpu_blocks < least:
            return f"{self.num_gpu_blocks}, as allocated already; reported are {list(self.reported)}"
        if len(self.reported) == 1:
            return f"{self.num_gpu_blocks}, as pod {self.limiting_pod} reported"
        return f"{self.num_gpu_blocks}, the minimum of {list(self.reported)}, limited by pod {self.limiting_pod}"


def counting_report(observed: Observed, pod: Pod) -> Report | None:
    """Return the pod's report if it counts."""
    worker = observed.worker(pod)
    if worker is None or worker.report is None or worker.state is WorkerState.FAILED:
        return None
    return worker.report if worker.report.num_gpu_blocks > 0 else None


def reports(observed: Observed) -> list[tuple[Pod, Report]]:
    """Return the reports that count, by replica."""
    found = ((pod, counting_report(observed, pod)) for pod in observed.replicas)
    return [(pod, report) for pod, report in found if report is not None]


def missing(observed: Observed) -> list[Pod]:
    """Return the pods that have a node and may still report."""
    return [
        pod
        for pod in observed.replicas
        if pod.is_scheduled and counting_report(observed, pod) is None and observed.state(pod) is not WorkerState.FAILED
    ]


def agree(observed: Observed) -> Agreement | None:
    """Return the agreement, None while there is nothing to agree on or somebody is still waited for."""
    counting = reports(observed)
    if not counting or _must_wait(observed):
        return None
    limiting_pod, least = min(counting, key=lambda entry: (entry[1].num_gpu_blocks, entry[0].index))
    bounds = [least.num_gpu_blocks, *_allocated(observed)]
    return Agreement(
        num_gpu_blocks=min(bounds),
        num_cpu_blocks=min(report.num_cpu_blocks for _, report in counting),
        block_size=least.block_size,
        reported=tuple(report.num_gpu_blocks for _, report in counting),
        limiting_pod=limiting_pod.name,
        limiting_rank=least.rank,
    )


def waiting_ends(observed: Observed) -> datetime | None:
    """Return until when reports are waited for, None if no wait was recorded."""
    recorded = observed.deployment.recorded.conditions.get(BLOCKS_AGREED)
    if recorded is None or recorded.condition.reason != WAITING_FOR_REPORTS or recorded.since is None:
        return None
    return recorded.since + timedelta(seconds=observed.agreement_timeout_s)


def _must_wait(observed: Observed) -> bool:
    """Tell whether a report may still come that the first agreement should hold."""
    if not missing(observed) or any(_allocated(observed)):
        return False
    ends = waiting_ends(observed)
    return ends is None or observed.now < ends


def _allocated(observed: Observed) -> Iterator[int]:
    """Yield the counts that are allocated."""
    counts = (observed.allocated_gpu_blocks(pod) for pod in observed.replicas)
    return (count for count in counts if count > 0)
