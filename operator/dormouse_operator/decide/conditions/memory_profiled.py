"""MemoryProfiled: every worker measured how many blocks it can hold. Pure."""

from __future__ import annotations

from dormouse_operator.decide import ranks
from dormouse_operator.decide.block_agreement import Blocks
from dormouse_operator.decide.conditions.verdicts import failed, first_failed, holds, not_yet, nothing_engaged, unknown
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Pod

TYPE = "MemoryProfiled"


def evaluate(situation: Situation, blocks: Blocks, model_loaded: Condition) -> Condition:
    """See the module. `model_loaded` is that condition."""
    if off := nothing_engaged(TYPE, situation):
        return off
    if found := first_failed(situation, "profiling"):
        pod, failure = found
        return failed(TYPE, failure.reason, f"pod {pod.name}: {failure.message}")
    if not model_loaded.is_true:
        return unknown(TYPE, "WaitingForModel", "not all workers have loaded the model")
    if flaw := next((told for pod in situation.engaged if (told := _flawed(situation, pod))), None):
        return flaw
    if empty := next((pod for pod in situation.engaged if _reports_nothing(situation, pod)), None):
        remedy = "give it more memory, or lower maxNumSeqs or maxNumBatchedTokens"
        return failed(TYPE, "InsufficientMemory", f"{_subject(situation, empty)} reports 0 blocks; {remedy}")
    counting = blocks.reports
    if len(counting) < len(situation.engaged):
        return not_yet(TYPE, "Profiling", f"{len(counting)} of {len(situation.engaged)} workers have reported")
    if blocks.kind and not blocks.kind.has_cache:
        return holds(TYPE, "Profiled", "the model keeps no cache, and its largest pass fits")
    counts = [report.num_gpu_blocks for _, report in counting]
    limits = sorted({report.limited_by for _, report in counting if report.limited_by})
    because = f", limited by {', '.join(limits)}" if limits else ""
    return holds(TYPE, "Profiled", f"reported blocks: {counts}{because}")


def _flawed(situation: Situation, pod: Pod) -> Condition | None:
    """Return what is wrong with what the replica reports, None if nothing is."""
    worker = situation.worker(pod)
    flaw = ranks.flaw_of(situation.group(pod), worker) if worker else None
    return failed(TYPE, flaw.reason, f"pod {pod.name}: {flaw.words}") if flaw else None


def _reports_nothing(situation: Situation, pod: Pod) -> bool:
    worker = situation.worker(pod)
    report = ranks.whole(worker) if worker else None
    return report is not None and report.has_cache and report.num_gpu_blocks == 0


def _subject(situation: Situation, pod: Pod) -> str:
    """Return who reports the least of the replica."""
    report = ranks.whole(situation.workers[pod.name])
    return ranks.where(situation.group(pod), report.rank) if report and pod.num_ranks > 1 else f"pod {pod.name}"
