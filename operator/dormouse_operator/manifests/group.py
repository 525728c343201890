"""What makes pods one group: names by which they find their leader, flags, labels, nodes near each other. Pure."""

from __future__ import annotations

from dormouse_api.names import (
    COMPONENT_FOLLOWER,
    GROUP_PORT,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_GROUP_SIZE,
    LABEL_LEADER_UID,
    LABEL_REPLICA,
    LABEL_REVISION,
    LABEL_WORKER_INDEX,
    METRICS_PORT,
)
from dormouse_operator.manifests.common import Manifest, labels_of, metadata_of, selector_labels
from dormouse_operator.model import Deployment, Pod, follower_name

MOST_RANKS_LISTED = 1000  # in the status of a deployment, as the schema bounds it
_OWN_UID = "$(DORMOUSE_POD_UID)"  # the kubelet puts a pod's own UID there


def ranks_service_name(deployment: str) -> str:
    """Return the name of the Service that gives each pod of a group a name of its own."""
    return f"{deployment}-ranks"


def ranks_service_manifest(deployment: Deployment) -> Manifest:
    """Return that Service: no address of its own, and names also of pods that are not ready yet."""
    name = deployment.key.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(deployment, ranks_service_name(name), labels_of(deployment)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_DEPLOYMENT: name},
            "ports": [{"name": "group", "port": GROUP_PORT, "targetPort": GROUP_PORT, "protocol": "TCP"}],
        },
    }


def leader_address(deployment: Deployment, leader: str) -> str:
    """Return the host name under which all pods of a group find the leader of this name."""
    return f"{leader}.{ranks_service_name(deployment.key.name)}.{deployment.key.namespace}.svc"


def join_group(pod: Manifest, deployment: Deployment, leader: Pod | None, ordinal: int) -> None:
    """Make a pod the leader of a group or, given its leader, the follower of this ordinal. Changes the pod."""
    metadata, container = pod["metadata"], pod["spec"]["containers"][0]
    leading = leader.name if leader else metadata["name"]
    if leader:
        metadata["name"] = follower_name(leader.name, ordinal)
        _follow(pod, deployment, leader)
    metadata["labels"] |= {
        LABEL_GROUP_SIZE: str(deployment.parallelism.pipeline),
        LABEL_WORKER_INDEX: str(ordinal),
    }
    pod["spec"] |= {"hostname": metadata["name"], "subdomain": ranks_service_name(deployment.key.name)}
    container["args"] = [
        *container["args"],
        f"--node-rank={ordinal}",
        f"--master-addr={leader_address(deployment, leading)}",
        f"--master-port={GROUP_PORT}",
    ]
    container["env"] = [
        *container["env"],
        {"name": "DORMOUSE_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "DORMOUSE_GROUP_ID", "value": _group_id(pod, deployment, leader)},
    ]


def ranks_complaint(deployment: Deployment, wanted_replicas: int) -> str:
    """Return why so many replicas cannot have these ranks, with the numbers; "" where nothing speaks against it."""
    shared = deployment.parallelism
    if shared.num_ranks == 1:
        return ""
    spec = deployment.placement.template.get("spec") or {}
    own = next((field for field in ("hostname", "subdomain") if field in spec), None)
    if shared.is_grouped and own:
        return f"spec.template.spec.{own} is set by the operator where spec.parallelism.pipeline is above 1; remove it"
    most = max(wanted_replicas, deployment.scaling.max_replicas if deployment.scaling else 0)
    if most * shared.num_ranks > MOST_RANKS_LISTED:
        product = (
            f"{most} replicas x tensor {shared.tensor} x pipeline {shared.pipeline} = {most * shared.num_ranks} ranks"
        )
        return f"spec.parallelism and the replicas make {product}; the status lists at most {MOST_RANKS_LISTED}"
    return _gpu_complaint(deployment)


def _gpu_complaint(deployment: Deployment) -> str:
    """Return which number of GPUs in spec.resources is not that of a pod's ranks."""
    gpu, tensor = deployment.placement.gpu_resource, deployment.parallelism.tensor
    for kind in ("limits", "requests"):
        given = (deployment.resources.get(kind) or {}).get(gpu)
        if given is not None and str(given) != str(tensor):
            needed = f"spec.parallelism.tensor is {tensor}, so each pod needs {tensor}: one for each of its ranks"
            return f"spec.resources.{kind}[{gpu}] is {given}; {needed}"
    return ""


def _group_id(pod: Manifest, deployment: Deployment, leader: Pod | None) -> str:
    """Return what no other group is called, and no earlier one of the same names: the leader's UID is in it."""
    labels = pod["metadata"]["labels"]
    uid = leader.uid if leader else _OWN_UID
    return f"{deployment.uid}/{labels[LABEL_REVISION]}/{labels[LABEL_REPLICA]}/{uid}"


def _follow(pod: Manifest, deployment: Deployment, leader: Pod) -> None:
    """Keep clients and gateways away, and stay near the leader. It is ready while its ranks are the leader's."""
    labels, container = pod["metadata"]["labels"], pod["spec"]["containers"][0]
    labels |= {LABEL_COMPONENT: COMPONENT_FOLLOWER, LABEL_LEADER_UID: leader.uid}
    http = {"httpGet": {"path": "/readyz", "port": METRICS_PORT}}
    container["readinessProbe"] = {**http, "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2}
    if key := deployment.parallelism.topology_key:
        beside = {
            **selector_labels(deployment.key.name),
            LABEL_REVISION: leader.revision,
            LABEL_REPLICA: str(leader.index),
        }
        term = {"labelSelector": {"matchLabels": beside}, "topologyKey": key}
        pod["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
