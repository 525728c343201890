"""ReplicasOwned: one writer sets the replicas, and a second one is told of while the operator stands back."""

from datetime import timedelta

import pytest

from dormouse_operator.decide.conditions import replicas_owned
from dormouse_operator.decide.scale_rivals import SCALER, STANDS_BACK, rival_of
from dormouse_operator.model import ScaleWriter, Scaling
from dormouse_operator.testing.nouns import NOW, a_deployment, a_situation

BY_LOAD = Scaling(max_replicas=4, target_outstanding=8)
HPA = ScaleWriter("kube-controller-manager", NOW)


def told(**deployment):
    condition = replicas_owned.evaluate(a_situation(deployment=a_deployment(**deployment)))
    return condition.status, condition.reason, condition.is_failure


@pytest.mark.parametrize(
    ("scaling", "writer", "expected"),
    [
        (None, None, ("True", "Spec", False)),
        (None, HPA, ("True", "Scaled", False)),
        (BY_LOAD, None, ("True", "Operator", False)),
        (BY_LOAD, ScaleWriter(SCALER, NOW), ("True", "Operator", False)),
        (BY_LOAD, ScaleWriter("kubectl", NOW), ("True", "Operator", False)),
        (BY_LOAD, HPA, ("False", "TwoWriters", True)),
    ],
)
def test_who_sets_the_replicas_is_said(scaling, writer, expected):
    assert told(scaling=scaling, scaled_by=writer) == expected


def test_the_message_names_the_other_and_until_when_the_operator_stands_back():
    found = replicas_owned.evaluate(a_situation(deployment=a_deployment(scaling=BY_LOAD, scaled_by=HPA)))
    assert "kube-controller-manager set spec.replicas at" in found.message
    assert (NOW + STANDS_BACK).strftime("%H:%M:%SZ") in found.message


@pytest.mark.parametrize(("age", "is_rival"), [(STANDS_BACK - timedelta(seconds=1), True), (STANDS_BACK, False)])
def test_a_rival_that_is_quiet_is_none(age, is_rival):
    deployment = a_deployment(scaling=BY_LOAD, scaled_by=HPA)
    assert (rival_of(deployment, NOW + age) is not None) is is_rival
