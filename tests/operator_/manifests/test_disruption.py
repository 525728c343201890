"""More than one replica has a disruption budget, a single one has none, and at rest nobody writes it."""

from __future__ import annotations

import pytest

from dormouse_kube.api import DISRUPTION_BUDGETS, PODS
from dormouse_kube.errors import Unavailable
from dormouse_operator.manifests import selector_labels


def budgets(rig):
    return rig.kube.everything(DISRUPTION_BUDGETS)


async def test_two_replicas_have_a_budget_that_lets_one_go_and_every_one_that_serves_nobody(rig):
    await rig.serving(replicas=2)
    (budget,) = budgets(rig)
    assert budget["metadata"]["name"] == "tiny"
    assert budget["metadata"]["ownerReferences"][0]["controller"] is True
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_labels("tiny")},
    }
    labels = [pod["metadata"]["labels"] for pod in rig.kube.everything(PODS)]
    assert all(selector_labels("tiny").items() <= of_pod.items() for of_pod in labels)


async def test_one_replica_has_none(rig):
    await rig.serving()
    assert budgets(rig) == []
    assert not [call for call in rig.kube.mutations() if call.plural == "poddisruptionbudgets"]


@pytest.mark.parametrize("replicas", [1, 0])
async def test_the_budget_goes_with_the_second_replica_and_comes_back_with_it(rig, replicas):
    await rig.serving(replicas=2)
    rig.apply(replicas=replicas)
    await rig.settle()
    assert budgets(rig) == []
    await rig.serving(replicas=2)
    assert len(budgets(rig)) == 1


async def test_nothing_is_written_at_rest(rig):
    await rig.serving(replicas=3)
    before = len(rig.kube.mutations())
    for _ in range(3):
        await rig.reconcile()
    assert len(rig.kube.mutations()) == before


async def test_what_somebody_changed_is_put_right(rig):
    await rig.serving(replicas=2)
    rig.kube.edit(DISRUPTION_BUDGETS, "team", "tiny", lambda budget: budget["spec"].update(maxUnavailable=0))
    await rig.settle()
    assert budgets(rig)[0]["spec"]["maxUnavailable"] == 1


async def test_a_budget_of_somebody_else_is_left_alone(rig):
    theirs = {"metadata": {"namespace": "team", "name": "tiny"}, "spec": {"minAvailable": 2}}
    before = rig.kube.put(DISRUPTION_BUDGETS, theirs)
    await rig.serving(replicas=2)
    rig.apply(replicas=1)
    await rig.settle()
    assert budgets(rig) == [before]


async def test_a_budget_that_could_not_be_removed_is_removed_later(rig):
    await rig.serving(replicas=2)
    rig.kube.fail("delete", DISRUPTION_BUDGETS, Unavailable("later", status=503, reason="ServiceUnavailable"), times=3)
    rig.apply(replicas=1)
    await rig.settle()
    assert budgets(rig) == []
    assert len(rig.errors) == 3
