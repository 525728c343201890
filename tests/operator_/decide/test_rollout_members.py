"""A roll-out of a pool's member: a slot has room for one pod of each replica, so old pods go before new ones come."""

from __future__ import annotations

import pytest

from dormouse_operator.decide.actions import CreatePod, SetGate
from dormouse_operator.decide.conditions import progressing
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.planner import plan
from dormouse_operator.model import Placement, PoolMember
from dormouse_operator.testing.nouns import a_deployment, a_pod, a_situation, a_worker

MEMBER = Placement(pool=PoolMember(name="shared"))


def changed(placement):
    """Return a deployment that serves with pods of another revision."""
    pods = (a_pod(0, revision="before"), a_pod(1, revision="before"))
    deployment = a_deployment(replicas=2, placement=placement)
    return a_situation(a_worker(), a_worker(), deployment=deployment, pods=pods)


@pytest.mark.parametrize(("placement", "creates", "reason"), [(Placement(), 1, "Surging"), (MEMBER, 0, "Recreating")])
def test_no_pod_is_made_beside_the_old_ones_of_a_member(placement, creates, reason):
    situation = changed(placement)
    findings = find(situation)
    actions = plan(situation, findings).actions
    assert sum(isinstance(action, CreatePod) for action in actions) == creates
    closed = [action.pod.index for action in actions if isinstance(action, SetGate)]
    assert closed == ([] if creates else [1]), "one at a time"
    assert progressing.evaluate(situation, findings).reason == reason
