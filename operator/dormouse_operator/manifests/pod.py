"""A worker's pod, and the readiness gate in its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dormouse_api.names import (
    CONTROL_PORT,
    INFERENCE_PORT,
    LABEL_POD_DIGEST,
    LABEL_RANKS,
    LABEL_REPLICA,
    LABEL_REVISION,
    METRICS_PORT,
    READINESS_GATE,
    STANDBY_VARIABLE,
)
from dormouse_operator.manifests.adapters import adapter_mounts, adapter_volumes
from dormouse_operator.manifests.arguments import worker_arguments
from dormouse_operator.manifests.common import (
    GRACE_AFTER_DRAIN_S,
    LABEL_INSTANCE,
    Manifest,
    labels_of,
    metadata_of,
    with_variables,
)
from dormouse_operator.manifests.download import download_container
from dormouse_operator.manifests.group import join_group
from dormouse_operator.manifests.identity import CERTIFICATES_DIR, identity_mount, identity_volume
from dormouse_operator.manifests.inference_pool import http_container, shared_pool
from dormouse_operator.manifests.kv_events import events_environment
from dormouse_operator.manifests.kv_store import store_environment, store_mount, store_volume
from dormouse_operator.manifests.memory import with_memory_request
from dormouse_operator.manifests.queue import admit_together
from dormouse_operator.manifests.resources import resources_of
from dormouse_operator.manifests.revision import pod_digest_of, pod_name, revision_of
from dormouse_operator.manifests.sources import source_mounts, source_volumes
from dormouse_operator.manifests.template import merge_template
from dormouse_operator.model import Deployment, DeviceClaim, Pod
from dormouse_operator.parse import CONTAINER, DRAFTS_ROOT, OPERATOR_KEY, format_time

_USER = 65532  # nobody's, as in the images
_NODE_LOSS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SHM_SIZE = "1Gi"  # most that /dev/shm may hold, out of the memory limit; a runtime's own 64Mi starves CUDA's libraries


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """What every worker pod gets from the operator's own settings."""

    image_pull_policy: str
    operator_key: str  # public keys by which workers know the two. In no digest: pods that are there keep theirs
    gateway_key: str
    node_loss_s: int = 30  # how long a pod stays on a node that does not answer
    http_image: str = "ghcr.io/dormouse/gateway:latest"  # of the HTTP API of pods; in no digest, as below
    # More variables. In no digest: pods that are there keep theirs, new ones get these.
    environment: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()  # names of Secrets in the pod's namespace; in no digest, as above


def pod_manifest(
    deployment: Deployment,
    *,
    image: str,
    index: int,
    defaults: WorkerDefaults,
    name: str | None = None,
    leader: Pod | None = None,
    ordinal: int = 0,
) -> Manifest:
    """Return one worker pod, allowed under Pod Security 'restricted', with the user's template merged over it.

    Without a name it has the usual one. With a leader it is the follower of this ordinal.
    """
    revision = revision_of(deployment, image)
    labels = {LABEL_REPLICA: str(index), LABEL_REVISION: revision, LABEL_POD_DIGEST: pod_digest_of(deployment, image)}
    metadata = _metadata(deployment, name or pod_name(deployment.key.name, revision, index), labels)
    spec = _spec(deployment, [_container(deployment, image, revision, defaults)])
    if defaults.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in defaults.image_pull_secrets]
    if first := _init_containers(deployment, image, defaults, is_follower=leader is not None):
        spec["initContainers"] = first
    pod: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    shared = deployment.parallelism
    if shared.is_grouped:
        join_group(pod, deployment, leader, ordinal)
    merged = _with_node_loss(merge_template(pod, deployment.placement.template), defaults.node_loss_s)
    if shared.is_grouped:
        merged = admit_together(merged, leader.name if leader else metadata["name"], shared.pipeline)
    return with_memory_request(merged)


def in_standby(pod: Manifest) -> Manifest:
    """Return the pod with a worker that starts without an engine, and waits to be woken."""
    containers = with_variables(pod["spec"]["containers"], {STANDBY_VARIABLE: "true"})
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def _init_containers(
    deployment: Deployment, image: str, defaults: WorkerDefaults, *, is_follower: bool
) -> list[Manifest]:
    """Return what starts before the worker: what fetches its model, and the HTTP API of a pod that can be called."""
    hub, containers = deployment.model.hub, []
    if hub:
        common, identity = _common(image, defaults), _identity(deployment, defaults)
        containers.append(download_container(deployment, hub, common=common, identity=identity))
    if deployment.serving.inference_pool and not is_follower:
        own = http_container(deployment, defaults.gateway_key)
        containers.append({**_common(defaults.http_image, defaults), **own})
    return containers


def _metadata(deployment: Deployment, name: str, labels: Mapping[str, str]) -> Manifest:
    ranks = deployment.parallelism.num_ranks
    more = {LABEL_RANKS: str(ranks)} if ranks > 1 else {}
    if pool := shared_pool(deployment):
        more[LABEL_INSTANCE] = pool
    metadata = metadata_of(deployment, name, {**labels_of(deployment), **labels, **more})
    # a worker has no state that a move would lose
    metadata["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    return metadata


def _spec(deployment: Deployment, containers: list[Manifest]) -> Manifest:
    spec: Manifest = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": deployment.lifecycle.drain_timeout_s + GRACE_AFTER_DRAIN_S,
        "readinessGates": [{"conditionType": READINESS_GATE}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
            **_volume_group(deployment),
        },
        "containers": containers,
        "volumes": _volumes(deployment),
    }
    if claims := deployment.placement.claims:
        spec["resourceClaims"] = [_resource_claim(claim) for claim in claims]
    return spec


def _with_node_loss(pod: Manifest, seconds: int) -> Manifest:
    """Return the pod with how long it stays on a lost node, unless the user's template says so itself."""
    own = pod["spec"].get("tolerations") or []
    said = {item.get("key") for item in own if item.get("effect", "NoExecute") == "NoExecute"}
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in _NODE_LOSS
        if not said & {key, None}
    ]
    return {**pod, "spec": {**pod["spec"], "tolerations": [*own, *added]}} if added else pod


def _resource_claim(claim: DeviceClaim) -> Manifest:
    """Return the pod's claim: one that exists, or one that is made of a template and goes with the pod."""
    if claim.template:
        return {"name": claim.name, "resourceClaimTemplateName": claim.template}
    return {"name": claim.name, "resourceClaimName": claim.claim}


def _volume_group(deployment: Deployment) -> Manifest:
    """Return what lets us write to a fresh volume; a volume that fits already is not walked through."""
    store = deployment.engine.kv_store
    writes = deployment.model.hub or (store and store.claim)
    return {"fsGroup": _USER, "fsGroupChangePolicy": "OnRootMismatch"} if writes else {}


def _common(image: str, defaults: WorkerDefaults) -> Manifest:
    """Return what all containers of the pod have alike."""
    return {
        "image": image,
        "imagePullPolicy": defaults.image_pull_policy,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _identity(deployment: Deployment, defaults: WorkerDefaults) -> list[Manifest]:
    """Return the variables by which a program of the pod knows the operator, and proves whose pod it is in."""
    tls = [{"name": "DORMOUSE_MUTUAL_TLS_DIR", "value": CERTIFICATES_DIR}] if deployment.mutual_tls else []
    return [
        {"name": "DORMOUSE_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": OPERATOR_KEY, "value": defaults.operator_key},
        *tls,
    ]


def _container(deployment: Deployment, image: str, revision: str, defaults: WorkerDefaults) -> Manifest:
    http = {"httpGet": {"path": "/healthz", "port": METRICS_PORT}}
    return {
        **_common(image, defaults),
        "name": CONTAINER,
        "args": worker_arguments(deployment),
        "env": [
            *_identity(deployment, defaults),
            {"name": "DORMOUSE_SETTINGS_DIGEST", "value": revision},
            {"name": "DORMOUSE_GATEWAY_KEY", "value": defaults.gateway_key},
            *store_environment(deployment.engine.kv_store),
            *events_environment(deployment.serving),
            *({"name": name, "value": value} for name, value in defaults.environment.items()),
        ],
        "ports": [
            {"name": "grpc", "containerPort": INFERENCE_PORT},
            {"name": "control", "containerPort": CONTROL_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "resources": resources_of(deployment),
        "startupProbe": {**http, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 180},
        "livenessProbe": {**http, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": METRICS_PORT},  # asleep it is OK: see the gate
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(deployment),
    }


def _volumes(deployment: Deployment) -> list[Manifest]:
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if deployment.engine.device == "cuda":
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHM_SIZE}})
    volumes += source_volumes(deployment.model)
    if claim := deployment.engine.speculation_claim:
        volumes.append({"name": "draft-model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    if store := deployment.engine.kv_store:
        volumes.append(store_volume(store))
    if deployment.mutual_tls:
        volumes.append(identity_volume(deployment.key.name))
    return volumes + adapter_volumes(deployment)


def _mounts(deployment: Deployment) -> list[Manifest]:
    """Return where the volumes are in the worker's container, in the order of `_volumes`."""
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108  # an emptyDir of the pod's own
    if deployment.engine.device == "cuda":
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108  # the same, in memory
    mounts += source_mounts(deployment.model)
    if claim := deployment.engine.speculation_claim:
        mounts.append({"name": "draft-model", "mountPath": f"{DRAFTS_ROOT}/{claim}", "readOnly": True})
    if deployment.engine.kv_store:
        mounts.append(store_mount())
    if deployment.mutual_tls:
        mounts.append(identity_mount())
    return mounts + adapter_mounts(deployment)


def gate_manifest(namespace: str, pod: Pod, *, is_open: bool, reason: str, now: datetime) -> Manifest:
    """Return the pod's readiness gate, to be applied to the status subresource.

    The UID makes the apply fail where a new pod took the name in the meantime.
    """
    condition = {
        "type": READINESS_GATE,
        "status": "True" if is_open else "False",
        "reason": reason,
        "message": "",
        "lastTransitionTime": format_time(now),
    }
    metadata = {"name": pod.name, "namespace": namespace, "uid": pod.uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"conditions": [condition]}}


def revision_manifest(deployment: Deployment, pod: Pod, revision: str) -> Manifest:
    """Return the label of a pod whose engine is of another revision now.

    It is for a field manager of its own: what one applied before and does not say again, an apply takes away.
    """
    metadata = {
        "name": pod.name,
        "namespace": deployment.key.namespace,
        "uid": pod.uid,
        "labels": {LABEL_REVISION: revision},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
