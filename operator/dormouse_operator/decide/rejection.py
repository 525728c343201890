"""Why this operator cannot do what a spec asks for. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import (
    claims_complaint,
    member_complaint,
    ranks_complaint,
    ranks_service_name,
    template_complaint,
)


class Rejection(NamedTuple):
    """Why nothing is done for a deployment, as its condition says it."""

    reason: str
    message: str


def rejection_of(situation: Situation) -> Rejection | None:
    """Return why the deployment is not served, None if it is."""
    deployment = situation.deployment
    has_downloader = deployment.model.hub is not None
    if complaint := template_complaint(deployment.placement.template, has_downloader=has_downloader):
        return Rejection("InvalidTemplate", complaint)
    if situation.service and not situation.service.is_ours:
        name = deployment.key.name
        words = f"a Service {name} exists that does not belong to this object; remove it or choose another name"
        return Rejection("ServiceNameTaken", words)
    if situation.ranks_service and not situation.ranks_service.is_ours:
        name = ranks_service_name(deployment.key.name)
        words = f"a Service {name}, by which the pods of a group find each other, exists that does not belong to this"
        return Rejection("ServiceNameTaken", f"{words} object; remove it or choose another name")
    wanted = situation.wanted_replicas
    if complaint := ranks_complaint(deployment, wanted) or claims_complaint(deployment, wanted):
        return Rejection("InvalidSpec", complaint)
    pool = situation.observed.pool
    if pool and (complaint := member_complaint(deployment, pool, wanted)):
        return Rejection("PoolUnfit", complaint)
    return None
