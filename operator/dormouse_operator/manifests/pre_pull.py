"""The DaemonSet that has a model on nodes ahead: what a worker's pod fetches, and a wait. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from dormouse_api.names import COMPONENT_PRE_PULL, LABEL_COMPONENT, LABEL_DEPLOYMENT, LABEL_POD_DIGEST
from dormouse_operator.manifests.common import Manifest, is_owned, labels_of, metadata_of
from dormouse_operator.manifests.identity import CERTIFICATES_DIR
from dormouse_operator.manifests.pod import WorkerDefaults, pod_manifest
from dormouse_operator.manifests.revision import pod_digest_of
from dormouse_operator.model import Deployment, PrePullState
from dormouse_operator.parse import CONTAINER, DOWNLOADER, MODEL_VOLUME

_OF_THE_POD = (  # of the worker's, as the user's template left them: where it may be, and how it gets its images
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "imagePullSecrets",
    "nodeSelector",
    "securityContext",
    "tolerations",
)
_OF_THE_WORKER = ("image", "imagePullPolicy", "securityContext")
_WAIT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"
_OURS = "DORMOUSE_"  # variables by which a worker's pod knows the operator: this one is asked by nobody


def pre_pull_name(deployment: str) -> str:
    """Return the name of the DaemonSet."""
    return f"{deployment}-pre-pull"


def pre_pull_manifest(deployment: Deployment, *, image: str, defaults: WorkerDefaults) -> Manifest:
    """Return the DaemonSet. Its pods are ready where the model, and the worker's image, is on their node."""
    worker = pod_manifest(deployment, image=image, index=0, defaults=defaults)["spec"]
    labels = {LABEL_DEPLOYMENT: deployment.key.name, LABEL_COMPONENT: COMPONENT_PRE_PULL}
    common = {**labels_of(deployment), **labels}
    metadata = metadata_of(
        deployment,
        pre_pull_name(deployment.key.name),
        {**common, LABEL_POD_DIGEST: _digest_of(deployment, image)},
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": common}, "spec": _pod(deployment, worker)},
        },
    }


def parse_pre_pull(raw: Mapping[str, Any] | None, deployment: Deployment, image: str) -> PrePullState | None:
    """Compare the DaemonSet of that name with what we would apply, and count its nodes."""
    if raw is None:
        return None
    metadata, status = raw["metadata"], raw.get("status") or {}
    is_told = status.get("observedGeneration", 0) >= metadata.get("generation", 1)
    ready = min(status.get("numberReady", 0), status.get("updatedNumberScheduled", 0))
    return PrePullState(
        uid=metadata["uid"],
        is_ours=is_owned(metadata, deployment),
        is_current=(metadata.get("labels") or {}).get(LABEL_POD_DIGEST) == _digest_of(deployment, image),
        num_nodes=status.get("desiredNumberScheduled", 0) if is_told else None,
        num_ready=ready if is_told else 0,
    )


def _digest_of(deployment: Deployment, image: str) -> str:
    """Return the digest of what decides its pods: what decides a worker's, and which nodes."""
    selector = deployment.pre_pull.node_selector if deployment.pre_pull else {}
    text = f"{pod_digest_of(deployment, image)} {sorted(selector.items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _pod(deployment: Deployment, worker: Manifest) -> Manifest:
    """Return the pod, given the spec of a worker's."""
    downloads = [_nameless(each) for each in worker.get("initContainers") or () if each["name"] == DOWNLOADER]
    wait = _wait(next(each for each in worker["containers"] if each["name"] == CONTAINER))
    spec = {name: worker[name] for name in _OF_THE_POD if name in worker}
    selector = {
        **(spec.get("nodeSelector") or {}),
        **(deployment.pre_pull.node_selector if deployment.pre_pull else {}),
    }
    nodes = (worker.get("affinity") or {}).get("nodeAffinity")
    return {
        **spec,
        **({"nodeSelector": selector} if selector else {}),
        **({"affinity": {"nodeAffinity": nodes}} if nodes else {}),
        **({"initContainers": downloads} if downloads else {}),
        "containers": [wait],
        "volumes": _mounted(worker.get("volumes") or (), [*downloads, wait]),
    }


def _nameless(download: Manifest) -> Manifest:
    """Return the init container without what proves to be a worker's pod: certificates, and the operator's key."""
    kept = [each for each in download.get("env") or () if not each["name"].startswith(_OURS)]
    mounts = [each for each in download.get("volumeMounts") or () if each["mountPath"] != CERTIFICATES_DIR]
    return {**download, "env": kept, "volumeMounts": mounts}


def _wait(worker: Manifest) -> Manifest:
    """Return what waits with the images of worker and model: the kubelet pulls both, and keeps them."""
    mounts = [each for each in worker.get("volumeMounts") or () if each["name"] == MODEL_VOLUME]
    return {
        **{name: worker[name] for name in _OF_THE_WORKER if name in worker},
        "name": "wait",
        "command": ["python", "-c", _WAIT],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "volumeMounts": mounts,
    }


def _mounted(volumes: Iterable[Manifest], containers: Iterable[Manifest]) -> list[Manifest]:
    """Return the volumes that one of the containers mounts."""
    names = {mount["name"] for each in containers for mount in each["volumeMounts"]}
    return [volume for volume in volumes if volume["name"] in names]
