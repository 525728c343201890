"""Where a worker keeps cached prefixes on disk: its pod's volume, mount, secret and flags. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_operator.manifests.common import Manifest, secret_variable
from dormouse_operator.model import KvStore

_VOLUME = "kv-store"
_ROOT = "/var/lib/dormouse-kv"
_DIRECTORY = f"{_ROOT}/blocks"  # of the worker's own making: it alone may enter
_SLACK_BYTES = 16 << 20  # directories grow beside the files that the worker counts


def store_volume(store: KvStore) -> Manifest:
    """Return the volume: a claim, or one that goes with the pod and that the kubelet bounds."""
    if store.claim:
        return {"name": _VOLUME, "persistentVolumeClaim": {"claimName": store.claim}}
    limit_bytes = store.size_bytes + store.size_bytes // 16 + _SLACK_BYTES
    return {"name": _VOLUME, "emptyDir": {"sizeLimit": str(limit_bytes)}}


def store_mount() -> Manifest:
    """Return where it is mounted."""
    return {"name": _VOLUME, "mountPath": _ROOT}


def store_environment(store: KvStore | None) -> list[Manifest]:
    """Return the variable with the secret, which the worker's flags would show."""
    return secret_variable("DORMOUSE_KV_STORE_KEY", store.secret) if store else []


def store_flags(store: KvStore | None) -> Mapping[str, object]:
    """Return the worker's flags; None = none."""
    return {
        "--kv-store-dir": _DIRECTORY if store else None,
        "--kv-store-size": store.size_bytes if store else None,
    }
