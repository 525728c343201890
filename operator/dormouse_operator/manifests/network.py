"""The NetworkPolicy of a deployment: the chart's arrows for its pods, those between the pods of a group. Pure.

Workers with a store of KV blocks reach each other's door for callers: streams that move take their blocks along.

It selects every pod of the deployment, followers too, whatever is wanted: while a deployment changes from groups to
single pods, or back, both are there. Pods of groups reach each other as long as the operator wants or has a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dormouse_api.names import COMPONENT_PRE_PULL, INFERENCE_PORT
from dormouse_operator.manifests.common import Manifest, group_pods_selector, is_owned, labels_of, metadata_of
from dormouse_operator.manifests.inference_pool import http_ingress
from dormouse_operator.manifests.kv_events import events_ingress
from dormouse_operator.model import Arrows, ChildState, Deployment, Pod
from dormouse_operator.parse import as_stored


def policy_manifest(deployment: Deployment, arrows: Arrows, pods: Iterable[Pod] = ()) -> Manifest:
    """Return the policy: whatever it does not allow is denied, in both directions. `pods` are those that are there.

    Ranks talk on whichever ports their libraries choose, and find their leader by name. Which group of the deployment
    a rank belongs to, its leader checks.
    """
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(deployment, deployment.key.name, labels_of(deployment)),
        "spec": _spec(deployment, arrows, pods),
    }


def _spec(deployment: Deployment, arrows: Arrows, pods: Iterable[Pod]) -> Manifest:
    all_pods = group_pods_selector(deployment.key.name)
    ingress, egress = [*arrows.ingress], [*arrows.egress]
    if deployment.serving.inference_pool:
        ingress.append(http_ingress())
    ingress += events_ingress(deployment.serving)
    if deployment.engine.kv_store is not None:
        doors = [{"protocol": "TCP", "port": INFERENCE_PORT}]
        ingress.append({"from": [{"podSelector": all_pods}], "ports": doors})
        egress.append({"to": [{"podSelector": all_pods}], "ports": doors})
    if deployment.parallelism.is_grouped or any(_leads_group(deployment, pod) for pod in pods):
        peers, ports = [{"podSelector": all_pods}], list(arrows.rank_ports)
        ingress.append({"from": peers, "ports": ports})
        egress += [{"to": peers, "ports": ports}, *(rule for rule in arrows.rank_egress if rule not in egress)]
    ahead = [COMPONENT_PRE_PULL] if deployment.pre_pull else []
    guarded = group_pods_selector(deployment.key.name, *ahead)
    return {"podSelector": guarded, "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}


def _leads_group(deployment: Deployment, pod: Pod) -> bool:
    """Return whether an operator made it for this deployment, as one of several of a replica."""
    return pod.owner_uid == deployment.uid and pod.group_size > 1


def parse_policy(
    raw: Mapping[str, Any] | None, deployment: Deployment, arrows: Arrows | None, pods: Iterable[Pod] = ()
) -> ChildState | None:
    """Compare the policy of the deployment's name with what we would apply; none is current where none is wanted."""
    if raw is None:
        return None
    metadata = raw["metadata"]
    return ChildState(
        uid=metadata["uid"],
        is_ours=is_owned(metadata, deployment),
        is_current=arrows is not None
        and as_stored(raw.get("spec") or {}) == as_stored(_spec(deployment, arrows, pods))
        and labels_of(deployment).items() <= (metadata.get("labels") or {}).items(),
    )
