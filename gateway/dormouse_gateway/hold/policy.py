"""What a deployment's line waits for, and how long. Pure."""

from __future__ import annotations

from dormouse_gateway.hold.terms import WaitPolicy, WaitReason
from dormouse_gateway.model import Deployment

_FAILING_LIMIT_S = 10.0  # the kubelet starts a crashed worker again: if it comes up then, nobody needs to be refused


def choose_policy(deployment: Deployment, saturated_timeout_s: float, *, is_awake: bool) -> WaitPolicy:
    """Return for what a request of the deployment waits now."""
    if is_awake:
        return WaitPolicy(WaitReason.SATURATED, saturated_timeout_s)
    if deployment.phase == "Failed":
        return WaitPolicy(WaitReason.FAILING, min(_FAILING_LIMIT_S, deployment.hold_timeout_s))
    return WaitPolicy(WaitReason.COLD, deployment.hold_timeout_s)
