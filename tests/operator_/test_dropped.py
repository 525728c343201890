"""A definition of the resource that is older than the operator: what it loses of the status is told."""

import logging

import pytest

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_operator.dropped import dropped_fields

KEPT = {"phase": "Active", "lifecycle": {"rung": "Zero"}, "crashes": [{"pod": "a"}, {"pod": "b"}], "conditions": []}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, ()),
        (KEPT, ()),
        ({"phase": "Zero", "conditions": [{"type": "Ready"}]}, ()),
        ({"url": None, "lifecycle": {"reason": None}}, ()),
        ({"pods": [], "modelName": {"name": "m"}, "phase": "Active"}, ("modelName", "pods")),
        ({"lifecycle": {"rung": "Zero", "idleSince": "now"}}, ("lifecycle.idleSince",)),
        ({"crashes": [{"pod": "a", "podUID": "1"}, {"pod": "b", "podUID": "2"}]}, ("crashes[].podUID",)),
        ({"lifecycle": None, "crashes": "odd"}, ()),
    ],
)
def test_what_was_sent_and_did_not_come_back_was_dropped(sent, expected):
    assert dropped_fields(sent, KEPT) == expected


async def test_a_definition_that_drops_a_field_is_told_with_the_field_and_what_helps_until_it_keeps_it(rig, caplog):
    caplog.set_level(logging.WARNING)
    rig.kube.know_no(INFERENCE_DEPLOYMENTS, "pods", "modelName")
    await rig.serving()
    words = "the API server does not keep status.modelName, status.pods: its definition of InferenceDeployment is older"
    cure = "apply the one of this release: kubectl apply --server-side -f crds/"
    assert rig.condition("Degraded") == ("True", "DefinitionOutdated", f"{words} than this operator; {cure}")
    assert (rig.status["phase"], rig.condition("Ready")[0]) == ("Active", "True")
    assert [record for record in caplog.messages if "does not keep" in record] == [
        "team/tiny and maybe others: the API server does not keep of the status: modelName, pods"
    ]
    before = rig.kube.version
    assert await rig.reconcile() == 60.0, "nobody tells that the definition is another one"
    assert rig.kube.version == before
    rig.kube.know_no(INFERENCE_DEPLOYMENTS)
    await rig.settle()
    assert rig.condition("Degraded")[:2] == ("False", "AsExpected")
    assert len(rig.status["pods"]) == 1
    assert await rig.reconcile() is None


async def test_what_is_not_sent_any_more_is_not_told_for_ever(rig):
    rig.kube.know_no(INFERENCE_DEPLOYMENTS, "kvCache")
    await rig.serving()
    assert rig.condition("Degraded")[1] == "DefinitionOutdated"
    rig.apply(replicas=0)
    await rig.settle()
    assert rig.condition("Degraded")[:2] == ("False", "AsExpected")


async def test_a_spec_that_can_not_be_read_under_an_older_definition_is_still_rejected_in_words(rig):
    rig.kube.know_no(INFERENCE_DEPLOYMENTS, "modelName")
    rig.apply(scaling={"maxReplicas": 0})
    await rig.settle()
    assert rig.condition("Accepted")[:2] == ("False", "InvalidSpec")
