"""BlocksAgreed: it is settled how many blocks every replica holds. Pure."""

from __future__ import annotations

from dormouse_operator.decide import block_agreement
from dormouse_operator.decide.block_agreement import Blocks, Kind
from dormouse_operator.decide.conditions.verdicts import failed, holds, not_yet, nothing_engaged, unknown
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Pod

TYPE = block_agreement.BLOCKS_AGREED


def evaluate(situation: Situation, blocks: Blocks) -> Condition:
    """See the module. The flip to WaitingForReports starts the clock of the wait."""
    if off := nothing_engaged(TYPE, situation):
        return off
    kind = blocks.kind
    if kind is None:
        return unknown(TYPE, "NoReports", "no worker has reported its blocks")
    if other := next((told for pod in situation.engaged if (told := _other_kind(situation, pod, kind))), None):
        return other
    late = ", ".join(pod.name for pod in blocks.missing)
    if blocks.agreement is None:
        words = f"{len(blocks.reports)} of {len(situation.engaged)} workers have reported; waiting for {late}"
        return not_yet(
            TYPE, block_agreement.WAITING_FOR_REPORTS, f"{words}, at most {situation.release.agreement_timeout_s:g} s"
        )
    without = f"; still without a report: {late}" if late else ""
    return holds(TYPE, "Agreed", f"blocks agreed: {blocks.agreement}{without}")


def _other_kind(situation: Situation, pod: Pod, kind: Kind) -> Condition | None:
    """Return in what the replica's report is not as the others', None if it is, or does not count anyway."""
    report = block_agreement.possible_report(situation, pod)
    if report is None:
        return None
    if report.has_cache != kind.has_cache:
        words = "a cache, the others none" if report.has_cache else "no cache, the others one"
        return failed(TYPE, "CacheDiffers", f"pod {pod.name} has a model that keeps {words}")
    if report.block_size != kind.block_size:
        words = f"reports blocks of {report.block_size} tokens, the others of {kind.block_size}"
        return failed(TYPE, "BlockSizeDiffers", f"pod {pod.name} {words}")
    return None
