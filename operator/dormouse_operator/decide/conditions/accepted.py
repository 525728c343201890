"""Accepted: this operator can do what the spec asks for. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.verdicts import failed, holds
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import (
    claims_complaint,
    member_complaint,
    ranks_complaint,
    ranks_service_name,
    template_complaint,
)
from dormouse_operator.model import Condition

TYPE = "Accepted"


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    return _rejection(situation) or holds(TYPE, "Accepted", "the spec can be served")


def _rejection(situation: Situation) -> Condition | None:
    """Return why the deployment is not served, None if it is."""
    deployment = situation.deployment
    has_downloader = deployment.model.hub is not None
    if complaint := template_complaint(deployment.placement.template, has_downloader=has_downloader):
        return failed(TYPE, "InvalidTemplate", complaint)
    if situation.service and not situation.service.is_ours:
        name = deployment.key.name
        words = f"a Service {name} exists that does not belong to this object; remove it or choose another name"
        return failed(TYPE, "ServiceNameTaken", words)
    if situation.ranks_service and not situation.ranks_service.is_ours:
        name = ranks_service_name(deployment.key.name)
        words = f"a Service {name}, by which the pods of a group find each other, exists that does not belong to this"
        return failed(TYPE, "ServiceNameTaken", f"{words} object; remove it or choose another name")
    wanted = situation.wanted_replicas
    if complaint := ranks_complaint(deployment, wanted) or claims_complaint(deployment, wanted):
        return failed(TYPE, "InvalidSpec", complaint)
    pool = situation.observed.pool
    if pool and (complaint := member_complaint(deployment, pool, wanted)):
        return failed(TYPE, "PoolUnfit", complaint)
    return None
