"""How a model of a hub comes to a worker: the init container that downloads it, the claim that keeps it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_operator.manifests.common import Manifest, labels_of, metadata_of, secret_variable
from dormouse_operator.manifests.identity import identity_mount
from dormouse_operator.model import Deployment, Hub
from dormouse_operator.parse import CACHE_ROOT, DOWNLOADER

CACHE_VOLUME = "cache"


def cache_volume(hub: Hub) -> Manifest:
    """Return the volume that keeps what was downloaded: a claim, or one that goes with the pod."""
    if hub.claim is None:
        return {"name": CACHE_VOLUME, "emptyDir": {}}
    return {"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": hub.claim}}


def cache_mount(*, is_read_only: bool) -> Manifest:
    """Return where the volume is mounted; only the downloader writes."""
    return {"name": CACHE_VOLUME, "mountPath": CACHE_ROOT} | ({"readOnly": True} if is_read_only else {})


def download_container(deployment: Deployment, hub: Hub, *, common: Manifest, identity: Sequence[Manifest]) -> Manifest:
    """Return the init container. `common` is what it shares with the worker's own: image and security.

    `identity` are the variables by which it knows the operator, and proves to be this pod: it tells how far it is.
    """
    mounts = [identity_mount()] if deployment.mutual_tls else []
    return {
        **common,
        "name": DOWNLOADER,
        "command": ["python", "-m", "dormouse_worker.download"],
        "args": [
            f"--repo={hub.repo}",
            f"--revision={hub.revision}",
            f"--directory={deployment.model.path}",
            *_file(hub),
        ],
        "env": [
            {"name": "HF_HOME", "value": f"{CACHE_ROOT}/.home"},
            {"name": "HF_HUB_DISABLE_XET", "value": "1"},  # its partial files cannot be continued
            {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"},
            *secret_variable("HF_TOKEN", hub.token),
            *identity,
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # an emptyDir of the pod's own
            cache_mount(is_read_only=False),
            *mounts,
        ],
    }


def _file(hub: Hub) -> list[str]:
    return [f"--file={hub.file}"] if hub.file else []


def claim_name(deployment: Deployment) -> str:
    """Return the name of the claim that the operator makes, "" where it makes none."""
    hub = deployment.model.hub
    return hub.claim or "" if hub and hub.claim_size else ""


def claim_manifest(deployment: Deployment) -> Manifest:
    """Return the claim that the operator makes. It is created and never changed: a claim's size is its own affair."""
    hub = deployment.model.hub
    assert hub is not None, "asked for only where the operator makes a claim"
    storage_class = {} if hub.storage_class is None else {"storageClassName": hub.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata_of(deployment, claim_name(deployment), labels_of(deployment)),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": hub.claim_size}},
            **storage_class,
        },
    }
