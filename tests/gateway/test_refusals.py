"""The sentences that a client reads when its request cannot be routed."""

import pytest

from dormouse_gateway.refusals import LATER_S, SOON_S, no_pod, none_ready, unknown_model
from dormouse_gateway.testing.workers import deployment


def test_the_list_of_known_models_is_bounded():
    known = [f"m{number:03}" for number in range(500)]
    message = unknown_model("x", known).message
    assert message.startswith("no model is called 'x'; known models: m000, m001, ")
    assert message.endswith("m019 and 480 more")


def test_without_any_model_none_is_known():
    assert unknown_model("x", []).message == "no model is called 'x'; known models: none"


@pytest.mark.parametrize(
    ("changes", "message", "retry_after_s"),
    [
        ({"replicas": 0}, "default/tiny is off: spec.replicas is 0", LATER_S),
        (
            {"desired_state": "Asleep", "phase": "Asleep"},
            "default/tiny is asleep: spec.lifecycle.desiredState is Asleep (phase Asleep)",
            LATER_S,
        ),
        ({}, "default/tiny has no ready worker", SOON_S),
        (
            {"phase": "Failed", "reason": "ModelNotFound", "message": "no /x"},
            "default/tiny has no ready worker (phase Failed); ModelNotFound: no /x",
            SOON_S,
        ),
    ],
)
def test_why_none_is_ready(changes, message, retry_after_s):
    error = none_ready(deployment("tiny", **changes))
    assert (error.message, error.retry_after_s) == (message, retry_after_s)


def test_a_long_reason_is_cut_so_that_the_status_fits():
    assert len(none_ready(deployment("tiny", message="x" * 5000)).message) < 600


def test_why_no_pod_is_there():
    assert no_pod(deployment("tiny", replicas=0)).message == "default/tiny is off: spec.replicas is 0"
    assert no_pod(deployment("tiny", phase="Pending")).message == "default/tiny has no running worker (phase Pending)"
