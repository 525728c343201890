"""What the operator writes to the cluster: pods, the Service, the readiness gate, Events. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from dormouse_api.names import (
    API_VERSION,
    COMPONENT_WORKER,
    CONTROL_PORT,
    INFERENCE_PORT,
    INFERENCE_SERVICE,
    KIND,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_REPLICA,
    LABEL_REVISION,
    METRICS_PORT,
    READINESS_GATE,
)
from dormouse_operator.model import Deployment, Key, Pod, ServiceState
from dormouse_operator.parse import CONTAINER, MODELS_ROOT, format_time

FIELD_MANAGER = "dormouse-operator"
_USER = 65532  # nobody's, as in the images
_GRACE_AFTER_DRAIN_S = 15  # for the end of the processes once the requests are done
_REVISION_CHARS = 8

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """What every worker pod gets from the operator's own settings."""

    image_pull_policy: str
    operator_token_sha256: str
    gateway_token_sha256: str


def revision_of(deployment: Deployment, image: str) -> str:
    """Return the digest over everything that decides a pod; another one means other pods."""
    decisive = {
        "model": asdict(deployment.model),
        "engine": asdict(deployment.engine),
        "image": image,
        "resources": deployment.resources,
        "drainTimeoutSeconds": deployment.lifecycle.drain_timeout_s,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:_REVISION_CHARS]


def choose_image(deployment: Deployment, pods: Sequence[Pod], default: str) -> str:
    """Return the worker image: the user's; else the recorded one as long as it is in use; else the operator's.

    In use means that the spec did not change since, or that pods of the unchanged pod-relevant part exist:
    scaling or waking after an upgrade of the operator must not restart workers.
    """
    recorded = deployment.recorded
    if deployment.image is not None:
        return deployment.image
    if recorded.image is None:
        return default
    is_unchanged = deployment.generation == recorded.observed_generation
    revision = revision_of(deployment, recorded.image)
    is_running = any(pod.revision == revision for pod in pods)
    return recorded.image if is_unchanged or is_running else default


def pod_name(deployment: str, revision: str, index: int) -> str:
    """Return the name of a worker pod."""
    return f"{deployment}-{revision}-{index}"


def selector_labels(deployment: str) -> dict[str, str]:
    """Return the labels that all worker pods of a deployment, and nothing else, carry."""
    return {LABEL_DEPLOYMENT: deployment, LABEL_COMPONENT: COMPONENT_WORKER}


def selector_text(deployment: str) -> str:
    """Return the selector as the API server takes it."""
    return ",".join(f"{key}={value}" for key, value in selector_labels(deployment).items())


def pod_manifest(deployment: Deployment, *, image: str, index: int, defaults: WorkerDefaults) -> Manifest:
    """Return one worker pod, allowed under Pod Security 'restricted'."""
    revision = revision_of(deployment, image)
    labels = {**_labels(deployment), LABEL_REPLICA: str(index), LABEL_REVISION: revision}
    metadata = _metadata(deployment, pod_name(deployment.key.name, revision, index), labels)
    # a worker has no state that a move would lose
    metadata["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": deployment.lifecycle.drain_timeout_s + _GRACE_AFTER_DRAIN_S,
            "readinessGates": [{"conditionType": READINESS_GATE}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(deployment, image, revision, defaults)],
            "volumes": _volumes(deployment),
        },
    }


def _container(deployment: Deployment, image: str, revision: str, defaults: WorkerDefaults) -> Manifest:
    claim = deployment.model.claim
    models = [{"name": "model", "mountPath": f"{MODELS_ROOT}/{claim}", "readOnly": True}] if claim else []
    http = {"httpGet": {"path": "/healthz", "port": METRICS_PORT}}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": defaults.image_pull_policy,
        "args": worker_arguments(deployment),
        "env": [
            {"name": "DORMOUSE_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "DORMOUSE_SETTINGS_DIGEST", "value": revision},
            {"name": "DORMOUSE_OPERATOR_TOKEN_SHA256", "value": defaults.operator_token_sha256},
            {"name": "DORMOUSE_GATEWAY_TOKEN_SHA256", "value": defaults.gateway_token_sha256},
        ],
        "ports": [
            {"name": "grpc", "containerPort": INFERENCE_PORT},
            {"name": "control", "containerPort": CONTROL_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "resources": dict(deployment.resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "startupProbe": {**http, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 180},
        "livenessProbe": {**http, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "readinessProbe": {
            "grpc": {"port": INFERENCE_PORT, "service": INFERENCE_SERVICE},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *models],  # noqa: S108  # an emptyDir of the pod's own
    }


def worker_arguments(deployment: Deployment) -> list[str]:
    """Return the worker's command line; what the spec leaves open is left to the worker."""
    engine = deployment.engine
    flags: dict[str, object] = {
        "--model": deployment.model.path,
        "--served-model-name": deployment.model.served_name,
        "--device": engine.device,
        "--dtype": engine.dtype,
        "--max-model-len": engine.max_model_len,
        "--max-num-seqs": engine.max_num_seqs,
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--gpu-memory-utilization": engine.gpu_memory_utilization,
        "--kv-cache-memory": engine.kv_cache_memory_bytes,
        "--block-size": engine.block_size,
        "--swap-space": engine.swap_space_bytes or None,
        "--load-format": engine.load_format,
        "--seed": engine.seed,
        "--drain-timeout": deployment.lifecycle.drain_timeout_s,
    }
    return [f"{flag}={value}" for flag, value in flags.items() if value is not None]


def _volumes(deployment: Deployment) -> list[Manifest]:
    tmp: Manifest = {"name": "tmp", "emptyDir": {}}
    claim = deployment.model.claim
    if claim is None:
        return [tmp]
    return [tmp, {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]


def service_manifest(deployment: Deployment) -> Manifest:
    """Return the Service that spreads calls over the workers that serve."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(deployment, deployment.key.name, _labels(deployment)),
        "spec": {
            "type": "ClusterIP",
            "selector": selector_labels(deployment.key.name),
            "ports": [
                {
                    "name": "grpc",
                    "port": INFERENCE_PORT,
                    "targetPort": "grpc",
                    "protocol": "TCP",
                    "appProtocol": "kubernetes.io/h2c",
                }
            ],
        },
    }


def parse_service(raw: Mapping[str, Any] | None, deployment: Deployment) -> ServiceState | None:
    """Compare the Service of the deployment's name with what we would apply."""
    if raw is None:
        return None
    wanted = service_manifest(deployment)
    owners = raw["metadata"].get("ownerReferences") or ()
    return ServiceState(
        is_ours=any(owner["uid"] == deployment.uid for owner in owners),
        is_current=raw["spec"].get("selector") == wanted["spec"]["selector"]
        and [_port(port) for port in raw["spec"].get("ports") or ()] == [_port(p) for p in wanted["spec"]["ports"]]
        and wanted["metadata"]["labels"].items() <= (raw["metadata"].get("labels") or {}).items(),
    )


def _port(port: Mapping[str, Any]) -> tuple[Any, ...]:
    return (port.get("name"), port["port"], port.get("targetPort"))


def gate_manifest(deployment: Deployment, pod: Pod, *, is_open: bool, reason: str, now: datetime) -> Manifest:
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
    metadata = {"name": pod.name, "namespace": deployment.key.namespace, "uid": pod.uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"conditions": [condition]}}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something worth telling the user once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def event_manifest(occurrence: Occurrence, *, key: Key, uid: str, now: datetime, reporter: str) -> Manifest:
    """Return the Event about a deployment. Its name tells when and what, so that a repetition is no second one."""
    mark = hashlib.sha256(f"{now.isoformat()}{occurrence.reason}{occurrence.message}".encode()).hexdigest()[:16]
    time = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key.name}.{mark}", "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        },
        "type": occurrence.type,
        "reason": occurrence.reason,
        "message": occurrence.message[:1024],
        "count": 1,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": reporter,
    }


def _labels(deployment: Deployment) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "dormouse",
        "app.kubernetes.io/instance": deployment.key.name,
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        **selector_labels(deployment.key.name),
    }


def _metadata(deployment: Deployment, name: str, labels: Mapping[str, str]) -> Manifest:
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": deployment.key.name,
        "uid": deployment.uid,
        "controller": True,
    }
    return {
        "name": name,
        "namespace": deployment.key.namespace,
        "labels": dict(labels),
        "ownerReferences": [owner],
    }
