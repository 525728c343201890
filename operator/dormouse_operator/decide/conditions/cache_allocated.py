"""CacheAllocated: every replica holds the agreed number of blocks. Pure."""

from __future__ import annotations

from dormouse_operator.decide.block_agreement import Blocks
from dormouse_operator.decide.conditions.verdicts import failed, first_failed, holds, not_yet, nothing_engaged, unknown
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AWAKE, Condition, WorkerState

TYPE = "CacheAllocated"


def evaluate(situation: Situation, blocks: Blocks) -> Condition:
    """See the module."""
    there = situation.engaged
    if off := nothing_engaged(TYPE, situation):
        return off
    if found := first_failed(situation, "later"):
        pod, failure = found
        return failed(TYPE, failure.reason, f"pod {pod.name}: {failure.message}")
    agreement = blocks.agreement
    if agreement is None:
        return unknown(TYPE, "WaitingForAgreement", "no number of blocks is agreed")
    profiled = (pod for pod in there if situation.state(pod) is WorkerState.PROFILED)
    if refused := next((pod for pod in profiled if pod.name in situation.observed.refusals), None):
        return failed(TYPE, "AllocationRefused", f"pod {refused.name}: {situation.observed.refusals[refused.name]}")
    sleeping = [pod for pod in there if situation.state(pod) is WorkerState.ASLEEP]
    if asleep := next((pod for pod in sleeping if not situation.is_spare(pod)), None):
        return not_yet(TYPE, "Asleep", f"pod {asleep.name} is asleep and has given its cache back")
    holding = [
        pod
        for pod in there
        if situation.state(pod) in AWAKE and situation.allocated_gpu_blocks(pod) == agreement.num_gpu_blocks
    ]
    words = f"{len(holding)} of {situation.wanted_replicas} workers hold {agreement.num_gpu_blocks} blocks"
    if len(holding) + situation.spare_replicas < situation.wanted_replicas:
        return not_yet(TYPE, "Allocating", words)
    return holds(TYPE, "Allocated", words)
