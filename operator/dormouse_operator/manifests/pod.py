"""A worker's pod, and the readiness gate in its status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dormouse_api.names import (
    CONTROL_PORT,
    INFERENCE_PORT,
    INFERENCE_SERVICE,
    LABEL_POD_DIGEST,
    LABEL_REPLICA,
    LABEL_REVISION,
    METRICS_PORT,
    READINESS_GATE,
)
from dormouse_operator.manifests.common import Manifest, labels_of, metadata_of
from dormouse_operator.manifests.revision import pod_digest_of, pod_name, revision_of
from dormouse_operator.model import Deployment, Pod
from dormouse_operator.parse import CONTAINER, MODELS_ROOT, format_time

_USER = 65532  # nobody's, as in the images
_GRACE_AFTER_DRAIN_S = 15  # for the end of the processes once the requests are done


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """What every worker pod gets from the operator's own settings."""

    image_pull_policy: str
    operator_token_sha256: str
    gateway_token_sha256: str


def pod_manifest(
    deployment: Deployment, *, image: str, index: int, defaults: WorkerDefaults, name: str | None = None
) -> Manifest:
    """Return one worker pod, allowed under Pod Security 'restricted'. Without a name it has the usual one."""
    revision = revision_of(deployment, image)
    labels = {
        **labels_of(deployment),
        LABEL_REPLICA: str(index),
        LABEL_REVISION: revision,
        LABEL_POD_DIGEST: pod_digest_of(deployment, image),
    }
    metadata = metadata_of(deployment, name or pod_name(deployment.key.name, revision, index), labels)
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
    arguments = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    return arguments if engine.enable_prefix_caching else [*arguments, "--no-enable-prefix-caching"]


def _volumes(deployment: Deployment) -> list[Manifest]:
    tmp: Manifest = {"name": "tmp", "emptyDir": {}}
    claim = deployment.model.claim
    if claim is None:
        return [tmp]
    return [tmp, {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]


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
