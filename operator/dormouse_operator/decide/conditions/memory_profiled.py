"""MemoryProfiled: every worker measured how many blocks it can hold. Pure."""

from __future__ import annotations

from dormouse_operator.decide import block_agreement, ranks
from dormouse_operator.decide.conditions import model_loaded
from dormouse_operator.decide.conditions.verdicts import failed, first_failed, holds, no_replicas, not_yet, unknown
from dormouse_operator.model import Condition, Observed, Pod

TYPE = "MemoryProfiled"


def evaluate(observed: Observed) -> Condition:
    """See the module."""
    if off := no_replicas(TYPE, observed):
        return off
    if found := first_failed(observed, "profiling"):
        pod, failure = found
        return failed(TYPE, failure.reason, f"pod {pod.name}: {failure.message}")
    if not model_loaded.evaluate(observed).is_true:
        return unknown(TYPE, "WaitingForModel", "not all workers have loaded the model")
    if flaw := next((told for pod in observed.replicas if (told := _flawed(observed, pod))), None):
        return flaw
    if empty := next((pod for pod in observed.replicas if _reports_nothing(observed, pod)), None):
        remedy = "give it more memory, or lower maxNumSeqs or maxNumBatchedTokens"
        return failed(TYPE, "InsufficientMemory", f"{_subject(observed, empty)} reports 0 blocks; {remedy}")
    counting = block_agreement.reports(observed)
    if len(counting) < len(observed.replicas):
        return not_yet(TYPE, "Profiling", f"{len(counting)} of {len(observed.replicas)} workers have reported")
    counts = [report.num_gpu_blocks for _, report in counting]
    limits = sorted({report.limited_by for _, report in counting if report.limited_by})
    because = f", limited by {', '.join(limits)}" if limits else ""
    return holds(TYPE, "Profiled", f"reported blocks: {counts}{because}")


def _flawed(observed: Observed, pod: Pod) -> Condition | None:
    """Return what is wrong with what the replica reports, None if nothing is."""
    worker = observed.worker(pod)
    flaw = ranks.flaw_of(observed.group(pod), worker) if worker else None
    return failed(TYPE, flaw.reason, f"pod {pod.name}: {flaw.words}") if flaw else None


def _reports_nothing(observed: Observed, pod: Pod) -> bool:
    worker = observed.worker(pod)
    report = ranks.whole(worker) if worker else None
    return report is not None and report.num_gpu_blocks == 0


def _subject(observed: Observed, pod: Pod) -> str:
    """Return who reports the least of the replica."""
    report = ranks.whole(observed.workers[pod.name])
    return ranks.where(observed.group(pod), report.rank) if report and pod.num_ranks > 1 else f"pod {pod.name}"
