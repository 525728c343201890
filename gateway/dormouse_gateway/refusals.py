"""The sentences with which the gateway refuses a request that it cannot route. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from dormouse_api.status import CallError
from dormouse_gateway.model import Deployment, Endpoint

MAX_NAMES = 20  # a list of all models would not fit into a status
MAX_REASON_CHARS = 500

SOON_S = 1.0  # something is starting or moving by itself
LATER_S = 30.0  # somebody must change the spec first
_FULL_S = 5.0  # a queue is full: some of it must go first


def not_synced() -> CallError:
    """The gateway has just started."""
    return CallError(grpc.StatusCode.UNAVAILABLE, "this gateway is still learning the models", SOON_S)


def unknown_model(name: str, known: Sequence[str]) -> CallError:
    """Nothing answers to the name; `known` is sorted."""
    shown = ", ".join(known[:MAX_NAMES]) or "none"
    more = len(known) - MAX_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return CallError(grpc.StatusCode.NOT_FOUND, f"no model is called {name!r}; known models: {shown}{rest}")


def none_ready(deployment: Deployment) -> CallError:
    """No pod can take the request now; says why, as far as the operator's status knows."""
    model = deployment.full_name
    if deployment.replicas == 0:
        return _unavailable(f"{model} is off: spec.replicas is 0", LATER_S)
    if deployment.desired_state == "Zero":
        return _unavailable(f"{model} has no pod: spec.lifecycle.desiredState is Zero", LATER_S)
    if deployment.desired_state == "Asleep":
        return _unavailable(f"{model} is asleep: spec.lifecycle.desiredState is Asleep{_phase(deployment)}", LATER_S)
    return _unavailable(f"{model} has no ready worker{_phase(deployment)}{_reason(deployment)}", SOON_S)


def no_pod(deployment: Deployment) -> CallError:
    """Not even a sleeping pod is there to answer what needs no engine."""
    if deployment.replicas == 0 or deployment.desired_state == "Zero":
        return none_ready(deployment)
    return _unavailable(
        f"{deployment.full_name} has no running worker{_phase(deployment)}{_reason(deployment)}", SOON_S
    )


def not_held(deployment: Deployment) -> CallError | None:
    """Return why requests do not wait while no worker takes any: waiting would change nothing. None = they wait."""
    is_ordered = deployment.replicas == 0 or deployment.desired_state in {"Asleep", "Zero"}
    is_hopeless = deployment.phase == "Rejected"
    return none_ready(deployment) if is_ordered or is_hopeless or not deployment.hold_timeout_s else None


def nobody_the_same(endpoint: Endpoint) -> CallError:
    """What a worker began nobody can go on with."""
    words = f"the workers of {endpoint.deployment.namespace}/{endpoint.deployment.name} run another model or revision"
    return _unavailable(words, SOON_S)


def hold_full(deployment: Deployment, words: str) -> CallError:
    """There is no room to wait; `words` name the limit."""
    message = f"{deployment.full_name} has no worker for this request now, and {words}"
    return CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, _FULL_S, "hold_full")


def held_too_long(deployment: Deployment, limit_s: float, *, is_saturated: bool) -> CallError:
    """The request has waited as long as it may: for a place at busy workers, or for a worker at all."""
    held = f"the request was held for {limit_s:g} s"
    if is_saturated:
        message = f"all workers of {deployment.full_name} are busy; {held}"
        return CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, _FULL_S, "saturated")
    why = f"{deployment.full_name} has no ready worker{_phase(deployment)}; {held}{_reason(deployment)}"
    return CallError(grpc.StatusCode.UNAVAILABLE, why, _FULL_S, "hold_timeout")


def held_past_deadline(deployment: Deployment) -> CallError:
    """The request's own deadline has passed."""
    words = f"the request's deadline passed while it waited for a worker of {deployment.full_name}"
    return CallError(grpc.StatusCode.DEADLINE_EXCEEDED, words + _phase(deployment), reason="deadline")


def ending() -> CallError:
    """This gateway goes; another one holds better."""
    words = "this gateway is shutting down; the request was not sent to any worker"
    return CallError(grpc.StatusCode.UNAVAILABLE, words, SOON_S, "shutting_down")


def deleted(full_name: str) -> CallError:
    """The deployment went while the request waited."""
    return CallError(grpc.StatusCode.NOT_FOUND, f"{full_name} was deleted while the request waited for a worker")


def _phase(deployment: Deployment) -> str:
    return f" (phase {deployment.phase})" if deployment.phase else ""


def _reason(deployment: Deployment) -> str:
    text = ": ".join(part for part in (deployment.reason, deployment.message) if part)
    if len(text) > MAX_REASON_CHARS:
        text = text[:MAX_REASON_CHARS] + "…"
    return f"; {text}" if text else ""


def _unavailable(message: str, retry_after_s: float) -> CallError:
    return CallError(grpc.StatusCode.UNAVAILABLE, message, retry_after_s)
