"""The pods of `spec.lifecycle.spares`: in STANDBY until a replica more is wanted, which a wake then finds there. Pure.

    replica    0 … wanted - 1            serves, sleeps or starts: all else is about these
               wanted … + spares - 1     parked: its pod has image, volumes and front, and no engine
               … spec.replicas - 1       has no pod

A wake, or more load, moves the first border: the next pod is wanted then, and woken as one that slept at level 3. So
nothing is adopted or renamed, and no pod is of more than one deployment.
"""

from __future__ import annotations

from dormouse_operator.decide import children
from dormouse_operator.decide.actions import Action, PutToSleep
from dormouse_operator.decide.rollout.inventory import Standing, is_exchanging
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import WorkerState
from dormouse_operator.model.wanted import STANDBY_LEVEL

_WITHOUT_ENGINE = {None, WorkerState.STANDBY, WorkerState.FAILED}  # None: its front is not up yet


def steps(situation: Situation, standing: Standing) -> list[Action]:
    """Return what parks as many as there should be. Pods that are wanted, or leave, come first: devices may be few."""
    actions: list[Action] = [
        PutToSleep((pod,), STANDBY_LEVEL, must_abort=True)
        for pod in standing.parked
        if situation.state(pod) not in _WITHOUT_ENGINE
    ]
    is_whole = len(standing.new) == situation.wanted_replicas
    if is_whole and not is_exchanging(situation, standing):
        actions += children.creations(situation, {pod.index for pod in standing.parked}, are_parked=True)
    return actions


def num_ready(situation: Situation) -> int:
    """Return how many pods wait in STANDBY, so that a wake finds them."""
    return sum(situation.state(pod) is WorkerState.STANDBY for pod in situation.parked)
