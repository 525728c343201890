"""What several decisions of a pass need, worked out once and handed on: spec, roll-out, blocks, who serves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_operator.decide.block_agreement import Blocks, blocks_of
from dormouse_operator.decide.rejection import Rejection, rejection_of
from dormouse_operator.decide.rollout.inventory import Standing, classify_pods, serving
from dormouse_operator.decide.rollout.stall import Stall, stall_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Pod


@dataclass(frozen=True, slots=True)
class Findings:
    """What follows from one situation."""

    rejection: Rejection | None  # nothing is done for a spec that cannot be served
    standing: Standing
    stall: Stall | None  # why the roll-out stopped; None: it goes on, or there is none
    blocks: Blocks  # of the revision that is wanted
    serving: tuple[Pod, ...]  # of whatever revision


def find(situation: Situation) -> Findings:
    """Return the findings."""
    standing = classify_pods(situation)
    return Findings(
        rejection=rejection_of(situation),
        standing=standing,
        stall=stall_of(situation, standing),
        blocks=blocks_of(situation),
        serving=serving(situation),
    )
