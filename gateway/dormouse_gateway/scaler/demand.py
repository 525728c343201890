"""What a ScaledObject asks for, and what there is to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from dormouse_api.names import DEFAULT_MAX_NUM_SEQS
from dormouse_api.status import CallError
from dormouse_gateway.activity import Activity
from dormouse_gateway.model import Deployment
from dormouse_kube.reflector import ObjectKey

METRIC = "dormouse-outstanding"
_DEPLOYMENT, _TARGET = "deployment", "targetOutstandingPerReplica"
_DEFAULT_TARGET = DEFAULT_MAX_NUM_SEQS // 2  # as where the operator scales
_MOST = 1e6


@dataclass(frozen=True, slots=True)
class Trigger:
    """What a trigger of type external says."""

    key: ObjectKey
    target: float  # unfinished requests that one replica is for


def read_trigger(namespace: str, said: Mapping[str, str]) -> Trigger:
    """Return what the trigger asks for, of its own namespace. Raises CallError INVALID_ARGUMENT."""
    name = said.get(_DEPLOYMENT, "")
    if not name or "/" in name:
        raise _invalid(f"metadata.{_DEPLOYMENT} is {name!r}; it has to name an InferenceDeployment of this namespace")
    text = said.get(_TARGET, str(_DEFAULT_TARGET))
    try:
        target = float(text)
    except ValueError:
        target = float("nan")
    if not 0 < target <= _MOST:
        raise _invalid(f"metadata.{_TARGET} is {text!r}; allowed are numbers above 0 and up to {_MOST:g}")
    return Trigger(ObjectKey(namespace, name), target)


def check_owner(key: ObjectKey, deployment: Deployment | None) -> None:
    """Raise CallError unless somebody else than the operator is to write the deployment's replicas."""
    if deployment is None:
        raise CallError(grpc.StatusCode.NOT_FOUND, f"there is no InferenceDeployment {key.namespace}/{key.name}")
    if deployment.is_scaled:
        words = "has spec.scaling, so the operator writes its replicas; remove spec.scaling or the ScaledObject"
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, f"{deployment.full_name} {words}")
    if deployment.replicas == 0:
        words = "is off (spec.replicas is 0): minReplicaCount must be at least 1, sleep is its lifecycle's affair"
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, f"{deployment.full_name} {words}")


def outstanding(activity: Activity | None) -> int:
    """Return the unfinished requests: those that wait here, and those of all gateways at workers that are awake."""
    if activity is None:
        return 0
    return max(activity.in_flight, activity.running + activity.waiting + activity.held)


def _invalid(words: str) -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, words)
