"""Whom an action is about."""

from __future__ import annotations

import pytest

from dormouse_operator.decide.actions import (
    ApplyNetworkPolicy,
    ApplyService,
    DeletePod,
    Drain,
    WakeUp,
    pods_of,
)
from dormouse_operator.testing.nouns import a_pod

ONE, OTHER = a_pod(0), a_pod(1)


@pytest.mark.parametrize("action", [ApplyService(), ApplyNetworkPolicy()], ids=repr)
def test_what_is_no_pods_is_about_none(action):
    assert pods_of(action) == ()


@pytest.mark.parametrize("action", [DeletePod(ONE), Drain(ONE)], ids=["DeletePod", "Drain"])
def test_an_action_on_a_pod_is_about_that_pod(action):
    assert pods_of(action) == (ONE,)


def test_workers_that_wake_together_are_all_meant():
    assert pods_of(WakeUp((ONE, OTHER))) == (ONE, OTHER)
