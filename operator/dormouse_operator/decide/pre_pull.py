"""Whether nodes fetch a model ahead, and on how many it is. Pure."""

from __future__ import annotations

from typing import Any

from dormouse_operator.decide.actions import Action, ApplyPrePull, DeletePrePull
from dormouse_operator.decide.children import keep
from dormouse_operator.decide.situation import Situation


def steps(situation: Situation) -> list[Action]:
    """Return what gives a deployment its DaemonSet, or takes it; somebody else's is left alone."""
    is_wanted = situation.deployment.pre_pull is not None
    return keep(situation.pre_pull, is_wanted=is_wanted, apply=ApplyPrePull(), delete=DeletePrePull)


def write(situation: Situation) -> dict[str, Any] | None:
    """Return what the status says; None where nothing is fetched ahead, or nothing is told of it yet."""
    state = situation.pre_pull
    if situation.deployment.pre_pull is None or state is None or not state.is_ours or state.num_nodes is None:
        return None
    return {"nodes": state.num_nodes, "readyNodes": state.num_ready}
