"""The Secrets that hold certificates, and how a worker's pod mounts its own. Pure.

The workers of a namespace share sixteen Secrets whose names are always the same, so that the operator needs no right to
any other. A deployment's certificate is in the one that its name leads to, in files that begin with its name, and the
deployment is among that Secret's owners:

    dormouse-identities-3      tiny.tls.crt  tiny.tls.key  llama.tls.crt  llama.tls.key  ca.crt     owners: tiny, llama
    <release>-gateway-identity tls.crt  tls.key  ca.crt                                             no owner
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.identity import CA_FILE, CERT_FILE, KEY_FILE
from dormouse_operator.manifests.common import FIELD_MANAGER, LABEL_INSTANCE, Manifest

CERTIFICATES_DIR = "/var/run/dormouse/certificates"
SHARED_SECRETS = tuple(f"dormouse-identities-{digit:x}" for digit in range(16))  # the chart names them, too
_VOLUME = "certificates"
_TLS = "kubernetes.io/tls"  # has tls.crt and tls.key


@dataclass(frozen=True, slots=True)
class Contents:
    """What a Secret holds that we keep."""

    version: str = ""  # "" = there is no such Secret
    owners: tuple[Manifest, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


def identity_secret_name(deployment: str) -> str:
    """Return the name of the Secret with the certificate of a deployment's workers."""
    return SHARED_SECRETS[hashlib.sha256(deployment.encode()).digest()[0] % len(SHARED_SECRETS)]


def shared_file(deployment: str, name: str) -> str:
    """Return how a file of a deployment is called in the Secret that it shares; all trust the same authorities."""
    return name if name == CA_FILE else f"{deployment}.{name}"


def contents_of(raw: Mapping[str, Any] | None) -> Contents:
    """Return what a Secret holds as the API server keeps it."""
    if raw is None:
        return Contents()
    metadata = raw["metadata"]
    files = {name: secret_file(raw, name) for name in raw.get("data") or {}}
    return Contents(metadata["resourceVersion"], tuple(metadata.get("ownerReferences") or ()), files)


def secret_manifest(metadata: Mapping[str, Any], files: Mapping[str, bytes], kind: str = _TLS) -> Manifest:
    """Return a Secret with these files."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": dict(metadata),
        "type": kind,
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def contents_manifest(metadata: Mapping[str, Any], contents: Contents) -> Manifest:
    """Return the Secret that holds this, to be written only in place of the version that was read."""
    version = {"resourceVersion": contents.version} if contents.version else {}
    owners = {"ownerReferences": list(contents.owners)} if contents.owners else {}
    kind = "Opaque" if contents.owners else _TLS
    return secret_manifest({**metadata, **version, **owners}, contents.files, kind)


def release_metadata(namespace: str, name: str, release: str) -> Manifest:
    """Return the metadata of a Secret of the release itself; it has no owner and outlives the operator's pod."""
    metadata = shared_metadata(namespace, name)
    return {**metadata, "labels": {**metadata["labels"], LABEL_INSTANCE: release}}


def shared_metadata(namespace: str, name: str) -> Manifest:
    """Return the metadata of a Secret that deployments share, but for its owners."""
    labels = {
        "app.kubernetes.io/name": "dormouse",
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }
    return {"name": name, "namespace": namespace, "labels": labels}


def is_operators_secret(raw: Mapping[str, Any]) -> bool:
    """Return whether a Secret that stands there is one that the operator made."""
    labels: Mapping[str, Any] = raw["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == FIELD_MANAGER


def secret_file(raw: Mapping[str, Any], name: str) -> bytes:
    """Return one file of a Secret as the API server keeps it, b"" if it is not there or not readable."""
    try:
        return base64.b64decode((raw.get("data") or {}).get(name, ""), validate=True)
    except (ValueError, TypeError):
        return b""


def identity_volume(deployment: str) -> Manifest:
    """Return the volume; the pod starts when its files are there. Only this pod's own user can read them there."""
    items = [{"key": shared_file(deployment, name), "path": name} for name in (CERT_FILE, KEY_FILE, CA_FILE)]
    secret = {"secretName": identity_secret_name(deployment), "items": items, "defaultMode": 0o444}
    return {"name": _VOLUME, "secret": secret}


def identity_mount() -> Manifest:
    """Return where it is in the worker's container."""
    return {"name": _VOLUME, "mountPath": CERTIFICATES_DIR, "readOnly": True}
