"""What a roll-out does now: relabel, remove, create, swap. Pure; `planner` asks it first, then every pod's own step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dormouse_operator.decide import children
from dormouse_operator.decide.actions import Action
from dormouse_operator.decide.rollout import removal, surge, swapping
from dormouse_operator.decide.rollout.inventory import Standing, is_available, is_swapping
from dormouse_operator.decide.rollout.limits import Limits, in_place_limits, may_surge, surge_limits
from dormouse_operator.decide.rollout.stall import Stall, limits_of_stall
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Pod


def plan(situation: Situation, standing: Standing, stop: Stall | None) -> list[Action]:
    """Return what to do with pods as a whole. At most one action per pod. `stop` says why the roll-out stopped."""
    limits = limits_of_stall(_limits(situation), stop)
    actions: list[Action] = [*swapping.relabels(situation)]
    leaving = [removal.next_step(situation, pod) for pod in standing.ending]
    actions += [step for step in leaving if step]
    actions += _exchange(situation, standing, limits)
    return actions if stop else [*actions, *swapping.swaps(situation, standing, limits)]


def older(situation: Situation, standing: Standing, stop: Stall | None) -> Iterator[tuple[Situation, list[Pod]]]:
    """Yield the pods of other revisions that stay for now, with what each revision sees.

    They are agreed with among themselves: a new engine's report says nothing about an old one.
    """
    idle = [pod for pod in standing.swappable if stop or not is_swapping(situation, pod)]
    staying = [*idle, *standing.old]
    for revision in sorted({pod.revision for pod in staying} - {situation.revision}):
        view = replace(situation, revision=revision)
        yield view, [pod for pod in staying if view.is_wanted(pod)]


def _limits(situation: Situation) -> Limits:
    rollout, wanted = situation.deployment.rollout, situation.wanted_replicas
    return surge_limits(rollout, wanted) if may_surge(situation.deployment) else in_place_limits(rollout, wanted)


def _exchange(situation: Situation, standing: Standing, limits: Limits) -> list[Action]:
    """Return the next step of the exchange of pods. One whose engine is swapped counts as a new one: it stays."""
    step = surge.next_step(_count(situation, standing), limits)
    if step is None:
        return []
    if step.verb == "create":
        filled = {pod.index for pod in (*standing.new, *standing.swappable, *_on_slots(situation))}
        return list[Action](children.creations(situation, filled)[: step.count])
    prey = sorted(standing.old, key=lambda pod: (_worth(situation, pod), _is_present(situation, pod), -pod.index))
    steps = (removal.next_step(situation, pod) for pod in prey[: step.count])
    return [found for found in steps if found]


def _on_slots(situation: Situation) -> list[Pod]:
    """Return the pods whose replicas have no second pod beside them: a pool knows each replica on one slot."""
    ours = (pod for pod in situation.pods if pod.owner_uid == situation.deployment.uid)
    return [pod for pod in ours if pod.pool] if situation.deployment.placement.pool else []


def _worth(situation: Situation, pod: Pod) -> int:
    """Return how much would be lost with the pod: one that serves is more than one that sleeps as it should."""
    if not is_available(situation, pod):
        return 0
    return 1 if situation.is_spare(pod) else 2


def _is_present(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod is of the revision that is wanted, and only one too many."""
    return situation.is_current(pod)


def _count(situation: Situation, standing: Standing) -> surge.Counts:
    staying = (*standing.new, *standing.swappable)
    ours = [pod for pod in standing.ending if pod.owner_uid == situation.deployment.uid]
    return surge.Counts(
        wanted=situation.wanted_replicas,
        old_total=len(standing.old),
        new_ready=sum(is_available(situation, pod) for pod in staying),
        new_total=len(staying),
        ending=len(ours) + standing.num_deleting,
    )
