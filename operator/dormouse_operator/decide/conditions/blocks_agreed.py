"""BlocksAgreed: it is settled how many blocks every replica holds. Pure."""

from __future__ import annotations

from dormouse_operator.decide import block_agreement
from dormouse_operator.decide.conditions.verdicts import failed, holds, no_replicas, not_yet, unknown
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Pod

TYPE = block_agreement.BLOCKS_AGREED


def evaluate(situation: Situation) -> Condition:
    """See the module. The flip to WaitingForReports starts the clock of the wait."""
    if off := no_replicas(TYPE, situation):
        return off
    counting = block_agreement.reports(situation)
    if not counting:
        return unknown(TYPE, "NoReports", "no worker has reported its blocks")
    size = counting[0][1].block_size
    if other := next((pod for pod in situation.replicas if _has_other_blocks(situation, pod, size)), None):
        return failed(TYPE, "BlockSizeDiffers", _other_words(situation, other, size))
    agreement = block_agreement.agree(situation)
    if agreement is None:
        awaited = ", ".join(pod.name for pod in block_agreement.missing(situation))
        words = f"{len(counting)} of {len(situation.replicas)} workers have reported; waiting for {awaited}"
        return not_yet(
            TYPE, block_agreement.WAITING_FOR_REPORTS, f"{words}, at most {situation.release.agreement_timeout_s:g} s"
        )
    late = ", ".join(pod.name for pod in block_agreement.missing(situation))
    return holds(TYPE, "Agreed", f"blocks agreed: {agreement}" + (f"; still without a report: {late}" if late else ""))


def _has_other_blocks(situation: Situation, pod: Pod, block_size: int) -> bool:
    report = block_agreement.possible_report(situation, pod)
    return report is not None and report.block_size != block_size


def _other_words(situation: Situation, pod: Pod, block_size: int) -> str:
    report = block_agreement.possible_report(situation, pod)
    size = report.block_size if report else 0
    return f"pod {pod.name} reports blocks of {size} tokens, the others of {block_size}"
