"""A new InferenceKey: draws the key, stores its digest, and prints it once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.names import API_VERSION, KEY_KIND
from dormouse_cli.errors import CommandFailed
from dormouse_cli.session import Session
from dormouse_kube.api import INFERENCE_KEYS
from dormouse_kube.errors import Conflict

PREFIX = "dm-"  # by which people, and programs that look for leaked secrets, know what it is
_NUM_BYTES = 32  # of such a random key a plain SHA-256 cannot be undone


async def create(
    session: Session,
    name: str,
    *,
    models: Sequence[str] | None,
    expires_in_days: float | None,
    limits: Mapping[str, int | None],
) -> None:
    """Make the InferenceKey. Raises CommandFailed, KubeError; then nothing was printed, and no key is lost."""
    key = PREFIX + secrets.token_urlsafe(_NUM_BYTES)
    expires = None if expires_in_days is None else datetime.now(UTC) + timedelta(days=expires_in_days)
    obj = manifest(session.namespace, name, key, {"models": models and list(models), "expires": expires, **limits})
    try:
        await session.cluster.create(INFERENCE_KEYS, obj)
    except Conflict as error:
        words = f"the InferenceKey {session.namespace}/{name} is there already; delete it first, which ends its key"
        raise CommandFailed(words) from error
    session.screen.remark(f"InferenceKey {session.namespace}/{name} is made; this is its key, which is stored nowhere:")
    session.screen.say(key)


def manifest(namespace: str, name: str, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the InferenceKey of a key; what is None is left out."""
    spec: dict[str, Any] = {"sha256": hashlib.sha256(key.encode()).hexdigest()}
    for field, value in given.items():
        if value is not None:
            spec[field] = f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else value
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": API_VERSION, "kind": KEY_KIND, "metadata": metadata, "spec": spec}
