"""What a roll-out does now: relabel, remove, create, swap. Pure; `planner` asks it first, then every pod's own step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dormouse_operator.decide import children
from dormouse_operator.decide.actions import Action
from dormouse_operator.decide.rollout import removal, surge, swapping
from dormouse_operator.decide.rollout.inventory import Standing, is_available, is_swapping
from dormouse_operator.decide.rollout.limits import Limits, in_place_limits, surge_limits
from dormouse_operator.decide.rollout.stall import Stall, limits_of_stall
from dormouse_operator.model import Observed, Pod


def plan(observed: Observed, standing: Standing, stop: Stall | None) -> list[Action]:
    """Return what to do with pods as a whole. At most one action per pod. `stop` says why the roll-out stopped."""
    limits = limits_of_stall(_limits(observed), stop)
    actions: list[Action] = [*swapping.relabels(observed)]
    leaving = [removal.next_step(observed, pod) for pod in standing.ending]
    actions += [step for step in leaving if step]
    actions += _exchange(observed, standing, limits)
    return actions if stop else [*actions, *swapping.swaps(observed, standing, limits)]


def older(observed: Observed, standing: Standing, stop: Stall | None) -> Iterator[tuple[Observed, list[Pod]]]:
    """Yield the pods of other revisions that stay for now, with what each revision sees.

    They are agreed with among themselves: a new engine's report says nothing about an old one.
    """
    idle = [pod for pod in standing.swappable if stop or not is_swapping(observed, pod)]
    staying = [*idle, *standing.old]
    for revision in sorted({pod.revision for pod in staying} - {observed.revision}):
        view = replace(observed, revision=revision)
        yield view, [pod for pod in staying if view.is_wanted(pod)]


def _limits(observed: Observed) -> Limits:
    rollout, wanted = observed.deployment.rollout, observed.deployment.replicas
    return surge_limits(rollout, wanted) if rollout.strategy == "Surge" else in_place_limits(rollout, wanted)


def _exchange(observed: Observed, standing: Standing, limits: Limits) -> list[Action]:
    """Return the next step of the exchange of pods. One whose engine is swapped counts as a new one: it stays."""
    step = surge.next_step(_count(observed, standing), limits)
    if step is None:
        return []
    if step.verb == "create":
        filled = {pod.index for pod in (*standing.new, *standing.swappable)}
        return list[Action](children.creations(observed, filled)[: step.count])
    prey = sorted(standing.old, key=lambda pod: (_worth(observed, pod), _is_present(observed, pod), -pod.index))
    steps = (removal.next_step(observed, pod) for pod in prey[: step.count])
    return [found for found in steps if found]


def _worth(observed: Observed, pod: Pod) -> int:
    """Return how much would be lost with the pod: one that serves is more than one that sleeps as it should."""
    if not is_available(observed, pod):
        return 0
    return 1 if observed.is_spare(pod) else 2


def _is_present(observed: Observed, pod: Pod) -> bool:
    """Tell whether the pod is of the revision that is wanted, and only one too many."""
    return observed.is_current(pod)


def _count(observed: Observed, standing: Standing) -> surge.Counts:
    staying = (*standing.new, *standing.swappable)
    ours = [pod for pod in standing.ending if pod.owner_uid == observed.deployment.uid]
    return surge.Counts(
        wanted=observed.deployment.replicas,
        old_total=len(standing.old),
        new_ready=sum(is_available(observed, pod) for pod in staying),
        new_total=len(staying),
        ending=len(ours) + standing.num_deleting,
    )
