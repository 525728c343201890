"""MemoryProfiled: every worker measured how many blocks it can hold. Pure."""

from __future__ import annotations

from dormouse_operator import capacity
from dormouse_operator.conditions import model_loaded
from dormouse_operator.conditions.ladder import failed, first_failed, holds, no_replicas, not_yet, unknown
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
    if odd := next((pod for pod in observed.replicas if flaw_of(observed, pod)), None):
        return failed(TYPE, "ReportOutOfBounds", f"pod {odd.name}: {flaw_of(observed, odd)}")
    if empty := next((pod for pod in observed.replicas if _reports_nothing(observed, pod)), None):
        words = f"pod {empty.name} reports 0 blocks; give it more memory, or lower maxNumSeqs or maxNumBatchedTokens"
        return failed(TYPE, "InsufficientMemory", words)
    counting = capacity.reports(observed)
    if len(counting) < len(observed.replicas):
        return not_yet(TYPE, "Profiling", f"{len(counting)} of {len(observed.replicas)} workers have reported")
    counts = [report.num_gpu_blocks for _, report in counting]
    limits = sorted({report.limited_by for _, report in counting if report.limited_by})
    because = f", limited by {', '.join(limits)}" if limits else ""
    return holds(TYPE, "Profiled", f"reported blocks: {counts}{because}")


def flaw_of(observed: Observed, pod: Pod) -> str:
    """Return which number of the pod's report is impossible, "" if none is."""
    worker = observed.worker(pod)
    return capacity.flaw_of(worker.report) if worker and worker.report else ""


def _reports_nothing(observed: Observed, pod: Pod) -> bool:
    worker = observed.worker(pod)
    return worker is not None and worker.report is not None and worker.report.num_gpu_blocks == 0
