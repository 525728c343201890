"""The Secrets that hold certificates, and how a worker's pod mounts its own. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from dormouse_operator.manifests.common import FIELD_MANAGER, Manifest

CERTIFICATES_DIR = "/var/run/dormouse/certificates"
_VOLUME = "certificates"


def identity_secret_name(deployment: str) -> str:
    """Return the name of the Secret with the certificate of a deployment's workers."""
    return f"{deployment}-identity"


def secret_manifest(metadata: Mapping[str, Any], files: Mapping[str, bytes]) -> Manifest:
    """Return a Secret of type kubernetes.io/tls with these files."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": dict(metadata),
        "type": "kubernetes.io/tls",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def release_metadata(namespace: str, name: str, release: str) -> Manifest:
    """Return the metadata of a Secret of the release itself; it has no owner and outlives the operator's pod."""
    labels = {
        "app.kubernetes.io/name": "dormouse",
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }
    return {"name": name, "namespace": namespace, "labels": labels}


def is_operators_secret(raw: Mapping[str, Any]) -> bool:
    """Tell whether a Secret that stands there is one that the operator made."""
    labels: Mapping[str, Any] = raw["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == FIELD_MANAGER


def secret_file(raw: Mapping[str, Any], name: str) -> bytes:
    """Return one file of a Secret as the API server keeps it, b"" if it is not there or not readable."""
    try:
        return base64.b64decode((raw.get("data") or {}).get(name, ""), validate=True)
    except (ValueError, TypeError):
        return b""


def identity_volume(deployment: str) -> Manifest:
    """Return the volume; the pod starts when the Secret is there. Only this pod's own user can read it there."""
    return {"name": _VOLUME, "secret": {"secretName": identity_secret_name(deployment), "defaultMode": 0o444}}


def identity_mount() -> Manifest:
    """Return where it is in the worker's container."""
    return {"name": _VOLUME, "mountPath": CERTIFICATES_DIR, "readOnly": True}
