"""BlocksAgreed: it is settled how many blocks every replica holds. Pure."""

from __future__ import annotations

from dormouse_operator.decide import block_agreement
from dormouse_operator.decide.block_agreement import Blocks
from dormouse_operator.decide.conditions.verdicts import failed, holds, not_yet, nothing_engaged, unknown
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Pod

TYPE = block_agreement.BLOCKS_AGREED


def evaluate(situation: Situation, blocks: Blocks) -> Condition:
    """See the module. The flip to WaitingForReports starts the clock of the wait."""
    if off := nothing_engaged(TYPE, situation):
        return off
    size = blocks.block_size
    if size is None:
        return unknown(TYPE, "NoReports", "no worker has reported its blocks")
    if other := next((pod for pod in situation.engaged if _has_other_blocks(situation, pod, size)), None):
        return failed(TYPE, "BlockSizeDiffers", _other_words(situation, other, size))
    late = ", ".join(pod.name for pod in blocks.missing)
    if blocks.agreement is None:
        words = f"{len(blocks.reports)} of {len(situation.engaged)} workers have reported; waiting for {late}"
        return not_yet(
            TYPE, block_agreement.WAITING_FOR_REPORTS, f"{words}, at most {situation.release.agreement_timeout_s:g} s"
        )
    without = f"; still without a report: {late}" if late else ""
    return holds(TYPE, "Agreed", f"blocks agreed: {blocks.agreement}{without}")


def _has_other_blocks(situation: Situation, pod: Pod, block_size: int) -> bool:
    report = block_agreement.possible_report(situation, pod)
    return report is not None and report.block_size != block_size


def _other_words(situation: Situation, pod: Pod, block_size: int) -> str:
    report = block_agreement.possible_report(situation, pod)
    size = report.block_size if report else 0
    return f"pod {pod.name} reports blocks of {size} tokens, the others of {block_size}"
