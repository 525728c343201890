"""The next step of pods that get another engine where they are: gate shut → drain → swap → the label follows. Pure.

The rest is as after any start: the new engine reports, is agreed with, allocates, and the gate opens.
"""

from __future__ import annotations

import re

from dormouse_operator.decide.actions import Relabel, SetGate, SwapEngine
from dormouse_operator.decide.draining import is_late
from dormouse_operator.decide.rollout.inventory import SWAPPING, Standing, is_available, is_swapping
from dormouse_operator.decide.rollout.limits import Limits
from dormouse_operator.decide.rollout.swap import SwapCounts, swaps_to_start
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Pod, Worker, WorkerState

_DIGEST = re.compile(r"[0-9a-f]{8}")


def relabels(situation: Situation) -> list[Relabel]:
    """Return what makes labels say which engines run: after a swap, or after a restart with the first arguments."""
    ours = [pod for pod in situation.pods if pod.owner_uid == situation.deployment.uid and not pod.is_deleting]
    strangers = ((pod, situation.strangers.get(pod.name)) for pod in ours)
    return [Relabel(pod, worker.settings_digest) for pod, worker in strangers if worker and _is_digest(worker)]


def _is_digest(worker: Worker) -> bool:
    """Return whether the worker's settings go by a digest of ours."""
    return _DIGEST.fullmatch(worker.settings_digest) is not None


def swaps(situation: Situation, standing: Standing, limits: Limits) -> list[SetGate | SwapEngine]:
    """Return the next step of every swap under way, and the first of those that may start now."""
    under_way = [pod for pod in standing.swappable if is_swapping(situation, pod)]
    there = (*standing.new, *standing.swappable, *standing.old)
    ready = [pod for pod in there if is_available(situation, pod) and pod not in under_way]
    sleeping_first = sorted(standing.swappable, key=lambda pod: not situation.is_spare(pod))
    candidates = [pod for pod in sleeping_first if pod in ready]
    counts = SwapCounts(wanted=situation.wanted_replicas, ready=len(ready), candidates=len(candidates))
    begun = candidates[: swaps_to_start(counts, limits)]
    steps = (_next_step(situation, pod) for pod in (*under_way, *begun))
    # asking for the digest of before takes a swap back
    taken_back = [SwapEngine(pod, must_end=False) for pod in standing.new if _is_swapped_away(situation, pod)]
    return [*taken_back, *(step for step in steps if step)]


def _is_swapped_away(situation: Situation, pod: Pod) -> bool:
    worker = situation.worker(pod)
    return worker is not None and worker.swapping_to not in {"", situation.revision}


def _next_step(situation: Situation, pod: Pod) -> SetGate | SwapEngine | None:
    worker = situation.worker(pod)
    if worker is None or worker.swapping_to not in {"", situation.revision}:
        return None
    if worker.state is WorkerState.ASLEEP or worker.swapping_to:
        return SwapEngine(pod, must_end=False)
    if pod.gate_open or pod.gate_reason != SWAPPING:
        return SetGate(pod, is_open=False, reason=SWAPPING)
    if is_late(situation, pod):
        return SwapEngine(pod, must_end=True)
    return None if pod.is_ready else SwapEngine(pod, must_end=False)
