"""How many KV-cache blocks every replica holds: the minimum of all reports, and when a report counts. Pure.

    first:   the minimum of the reports that count
    then:    lowered at once by a smaller report; raised only if every replica could follow and it is worth a tenth

A replica of several ranks reports as one (`ranks`). A report counts when the worker has not failed, its numbers are
possible, and its blocks have the size of the others'. Where the models keep no cache, all report 0 blocks and agree on
them; 0 blocks of a model that keeps one do not count. (That it is of this pod and of these settings is checked where
workers are asked.) Raising interrupts workers that serve, one after the other, so it must be worth it. At the first
start everybody who has a node is waited for, but only so long: a replica without a node, or a late one, joins later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from dormouse_operator.decide import ranks
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AWAKE, Pod, Report, Worker, WorkerState

BLOCKS_AGREED = "BlocksAgreed"
WAITING_FOR_REPORTS = "WaitingForReports"
_SILENT = {WorkerState.FAILED, WorkerState.STANDBY}  # report nothing for now
_PAST_START = AWAKE | {WorkerState.ASLEEP, WorkerState.WAKING}  # the agreement was carried out
WORTH_RAISING = 1.1  # a larger count is taken from this multiple of the present one on


class Kind(NamedTuple):
    """What the reports that count have alike."""

    block_size: int
    has_cache: bool


def kind_of(report: Report) -> Kind:
    """Return the kind of a report."""
    return Kind(report.block_size, report.has_cache)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What every replica must hold, and why."""

    num_gpu_blocks: int  # 0 = the model keeps no cache
    num_cpu_blocks: int
    block_size: int
    reported: tuple[int, ...]  # by replica
    limiting_pod: str
    limiting_rank: int
    limiter: str  # who that is, for people

    def __str__(self) -> str:
        """Return the sentence that users read."""
        if not self.num_gpu_blocks:
            return "0, as the model keeps no cache"
        least = min(self.reported)
        if self.num_gpu_blocks < least:
            return f"{self.num_gpu_blocks}, as allocated already; reported are {list(self.reported)}"
        if len(self.reported) == 1:
            return f"{self.num_gpu_blocks}, as {self.limiter} reported"
        return f"{self.num_gpu_blocks}, the minimum of {list(self.reported)}, limited by {self.limiter}"


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the replicas of one revision report, and what follows. Computed once a pass, and handed on."""

    reports: tuple[tuple[Pod, Report], ...]  # that count, by replica
    missing: tuple[Pod, ...]  # have a node and may still report
    agreement: Agreement | None  # None while there is nothing to agree on, or somebody is still waited for

    @property
    def kind(self) -> Kind | None:
        """Return the kind that counts, None while no report does."""
        return kind_of(self.reports[0][1]) if self.reports else None

    def counts(self, pod: Pod) -> bool:
        """Return whether the pod's report is one of those that count."""
        return any(other.name == pod.name for other, _ in self.reports)


def possible_report(situation: Situation, pod: Pod) -> Report | None:
    """Return what the replica reports unless it failed or something in it cannot be; of several ranks the least."""
    worker = situation.worker(pod)
    report = ranks.whole(worker) if worker and worker.state is not WorkerState.FAILED else None
    if worker is None or report is None:
        return None
    lacks_memory = report.has_cache and report.num_gpu_blocks == 0
    return None if lacks_memory or ranks.flaw_of(situation.group(pod), worker) else report


def blocks_of(situation: Situation) -> Blocks:
    """Return what the replicas of the situation's revision report and agree on."""
    known = [(pod, report) for pod in situation.replicas if (report := possible_report(situation, pod))]
    kind = _kind(situation, known)
    counting = tuple((pod, report) for pod, report in known if kind_of(report) == kind)
    missing = _missing(situation)
    must_wait = bool(missing) and _must_wait(situation)
    return Blocks(counting, missing, None if must_wait or not counting else _agree(situation, counting))


def _kind(situation: Situation, known: Sequence[tuple[Pod, Report]]) -> Kind | None:
    """Return the kind that counts: of those that are past their start, else of most; the lowest index decides."""
    holding = [kind_of(report) for pod, report in known if _is_past_start(situation, pod)]
    kinds = Counter(holding or [kind_of(report) for _, report in known])
    return max(kinds, key=lambda kind: kinds[kind], default=None)


def _missing(situation: Situation) -> tuple[Pod, ...]:
    scheduled = (pod for pod in situation.replicas if situation.group(pod).is_scheduled)
    return tuple(pod for pod in scheduled if _may_report(situation.worker(pod)))


def _may_report(worker: Worker | None) -> bool:
    return worker is None or (not ranks.reports_of(worker) and worker.state not in _SILENT)


def _agree(situation: Situation, counting: Sequence[tuple[Pod, Report]]) -> Agreement:
    """Return what follows from the reports that count, of which there is one at least."""
    limiting_pod, least = min(counting, key=lambda entry: (entry[1].num_gpu_blocks, entry[0].index))
    group = situation.group(limiting_pod)
    return Agreement(
        num_gpu_blocks=_agreed(situation, least.num_gpu_blocks, is_complete=len(counting) == situation.wanted_replicas),
        num_cpu_blocks=min(report.num_cpu_blocks for _, report in counting),
        block_size=least.block_size,
        reported=tuple(report.num_gpu_blocks for _, report in counting),
        limiting_pod=group.pod_name(least.rank),
        limiting_rank=least.rank,
        limiter=f"pod {limiting_pod.name}" if limiting_pod.num_ranks == 1 else ranks.where(group, least.rank),
    )


def waiting_ends(situation: Situation) -> datetime | None:
    """Return until when reports are waited for, None if no wait was recorded."""
    recorded = situation.deployment.recorded.conditions.get(BLOCKS_AGREED)
    if recorded is None or recorded.condition.reason != WAITING_FOR_REPORTS or recorded.since is None:
        return None
    return recorded.since + timedelta(seconds=situation.release.agreement_timeout_s)


def _agreed(situation: Situation, least: int, *, is_complete: bool) -> int:
    """Return the count, given the least report that counts and whether every replica has one."""
    held = _present(situation)
    if held is None or (is_complete and least >= held * WORTH_RAISING):
        return least
    return min(least, held)


def _present(situation: Situation) -> int | None:
    """Return the count of now: the recorded one, as long as anybody holds a cache; None = none."""
    allocated = list(_allocated(situation))
    recorded = situation.deployment.recorded.kv_cache
    if not allocated:
        return None
    return recorded.num_gpu_blocks if recorded and recorded.num_gpu_blocks else min(allocated)


def _must_wait(situation: Situation) -> bool:
    """Return whether the first agreement still has to hold a report that is missing."""
    if any(_is_past_start(situation, pod) for pod in situation.replicas):
        return False
    ends = waiting_ends(situation)
    return ends is None or situation.now < ends


def _is_past_start(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod holds a cache, or would again after a wake, or has come as far without one."""
    worker = situation.worker(pod)
    report = ranks.whole(worker) if worker else None
    if worker is None or report is None or report.has_cache:
        return situation.allocated_gpu_blocks(pod) > 0
    return worker.state in _PAST_START


def _allocated(situation: Situation) -> Iterator[int]:
    """Yield the counts that are allocated."""
    counts = (situation.allocated_gpu_blocks(pod) for pod in situation.replicas)
    return (count for count in counts if count > 0)
