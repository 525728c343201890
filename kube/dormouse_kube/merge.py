"""How the API server merges what it is sent (server-side apply, JSON merge patch), as far as FakeKube needs. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

MERGE_KEYS: Mapping[str, str] = {  # lists that server-side apply merges by the value of one field
    "conditions": "type",
    "ownerReferences": "uid",
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "name",
}
ATOMIC = {"selector"}  # maps that it replaces as a whole


def merge(base: Any, over: Any, name: str = "") -> Any:
    """Merge as server-side apply does: objects by key, known lists by their key field, all else replaced."""
    if isinstance(base, dict) and isinstance(over, dict) and name not in ATOMIC:
        return {**base, **{key: merge(base.get(key), value, key) for key, value in over.items()}}
    key = MERGE_KEYS.get(name)
    if key and isinstance(base, list) and isinstance(over, list):
        known = {item.get(key): item for item in base}
        merged = {item.get(key): merge(known.get(item.get(key), {}), item) for item in over}
        return list({**known, **merged}.values())
    return copy.deepcopy(over)


def remove_given_up(obj: Any, before: Any, now: Any, name: str = "") -> Any:
    """Remove from `obj` what the manager applied before and applies no more."""
    if isinstance(obj, dict) and isinstance(before, dict) and isinstance(now, dict):
        gone = before.keys() - now.keys()
        return {
            key: remove_given_up(value, before.get(key), now.get(key), key)
            for key, value in obj.items()
            if key not in gone
        }
    key = MERGE_KEYS.get(name)
    if key and isinstance(obj, list) and isinstance(before, list) and isinstance(now, list):
        gone = {item.get(key) for item in before} - {item.get(key) for item in now}
        return [item for item in obj if item.get(key) not in gone]
    return obj


def merge_patch(base: Any, patch: Any) -> Any:
    """Merge as RFC 7386 says: None removes a key."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
