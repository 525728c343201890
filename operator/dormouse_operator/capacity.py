"""How many KV-cache blocks every replica holds: the minimum of all reports, and when a report counts. Pure.

    first:   the minimum of the reports that count
    then:    lowered at once by a smaller report; raised only if every replica could follow and it is worth a tenth

A report counts when the worker has not failed, its numbers are possible, and its blocks have the size of the others'.
(That it is of this pod and of these settings is checked where workers are asked.) Raising interrupts workers that
serve, one after the other, so it must be worth it. At the first start everybody who has a node is waited for, but only
so long: a replica without a node, or a late one, joins later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from dormouse_operator.model import Observed, Pod, Report, Worker, WorkerState

BLOCKS_AGREED = "BlocksAgreed"
WAITING_FOR_REPORTS = "WaitingForReports"
WORTH_RAISING = 1.1  # a larger count is taken from this multiple of the present one on
MAX_BLOCKS = 2**31 - 1  # numbers of blocks are 32-bit integers in the block tables


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


def flaw_of(report: Report) -> str:
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


def possible_report(observed: Observed, pod: Pod) -> Report | None:
    """Return the pod's report unless the worker failed or a number in it is impossible."""
    worker = observed.worker(pod)
    if worker is None or worker.report is None or worker.state is WorkerState.FAILED:
        return None
    return None if flaw_of(worker.report) or worker.report.num_gpu_blocks == 0 else worker.report


def block_size_of(observed: Observed) -> int | None:
    """Return the tokens per block that counts: of those that hold a cache, else of most; the lowest index decides."""
    known = [(pod, report) for pod in observed.replicas if (report := possible_report(observed, pod))]
    holding = [report.block_size for pod, report in known if observed.allocated_gpu_blocks(pod)]
    sizes = Counter(holding or [report.block_size for _, report in known])
    return sizes.most_common(1)[0][0] if sizes else None


def counting_report(observed: Observed, pod: Pod, block_size: int | None) -> Report | None:
    """Return the pod's report if it counts, where this size of blocks does."""
    report = possible_report(observed, pod)
    return report if report and report.block_size == block_size else None


def reports(observed: Observed) -> list[tuple[Pod, Report]]:
    """Return the reports that count, by replica."""
    size = block_size_of(observed)
    found = ((pod, counting_report(observed, pod, size)) for pod in observed.replicas)
    return [(pod, report) for pod, report in found if report]


def missing(observed: Observed) -> list[Pod]:
    """Return the pods that have a node and may still report."""
    return [pod for pod in observed.replicas if pod.is_scheduled and _may_report(observed.worker(pod))]


def _may_report(worker: Worker | None) -> bool:
    return worker is None or (worker.report is None and worker.state is not WorkerState.FAILED)


def agree(observed: Observed) -> Agreement | None:
    """Return the agreement, None while there is nothing to agree on or somebody is still waited for."""
    counting = reports(observed)
    if not counting or _must_wait(observed):
        return None
    limiting_pod, least = min(counting, key=lambda entry: (entry[1].num_gpu_blocks, entry[0].index))
    return Agreement(
        num_gpu_blocks=_agreed(
            observed, least.num_gpu_blocks, is_complete=len(counting) == observed.deployment.replicas
        ),
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


def _agreed(observed: Observed, least: int, *, is_complete: bool) -> int:
    """Return the count, given the least report that counts and whether every replica has one."""
    held = _present(observed)
    if held is None or least < held:
        return least
    return least if is_complete and least >= held * WORTH_RAISING else held


def _present(observed: Observed) -> int | None:
    """Return the count of now: the recorded one, as long as anybody holds a cache; None = none."""
    allocated = list(_allocated(observed))
    recorded = observed.deployment.recorded.kv_cache
    if not allocated:
        return None
    return recorded.num_gpu_blocks if recorded and recorded.num_gpu_blocks else min(allocated)


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
