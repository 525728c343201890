"""The InferenceKeys of the cluster as keys. Owns what the watch told; reads no clock and knows no callers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from dormouse_api.inference_keys import BadInferenceKey, InferenceKey, holders, parse_inference_key
from dormouse_gateway.clients.key_files import ApiKey
from dormouse_kube.api import Resource
from dormouse_kube.reflector import ObjectKey

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class KeyObjects:
    """The InferenceKeys, by place and by digest."""

    _objects: dict[ObjectKey, InferenceKey] = field(default_factory=dict)
    _by_digest: dict[bytes, ApiKey] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Show how many there are."""
        return f"KeyObjects({len(self._objects)})"

    def on_change(self, key: ObjectKey, obj: Resource | None) -> None:
        """Take a change of an InferenceKey; one that cannot be read lets nobody in. Never raises."""
        former = self._objects.pop(key, None)
        parsed = _parsed(key, obj)
        if parsed:
            self._objects[key] = parsed
        for digest in {each.digest for each in (former, parsed) if each}:
            self._settle(digest)

    def find(self, digest: bytes) -> ApiKey | None:
        """Return the key with this digest, None if there is none. An attacker cannot choose digests bit by bit."""
        return self._by_digest.get(digest)

    def names(self) -> set[str]:
        """Return the full names of all."""
        return {each.full_name for each in self._objects.values()}

    def _settle(self, digest: bytes) -> None:
        found = holders(each for each in self._objects.values() if each.digest == digest)
        if digest in found:
            self._by_digest[digest] = _to_key(found[digest])
        else:
            self._by_digest.pop(digest, None)


def _parsed(key: ObjectKey, obj: Resource | None) -> InferenceKey | None:
    if obj is None or "deletionTimestamp" in obj["metadata"]:
        return None
    try:
        return parse_inference_key(obj)
    except BadInferenceKey as error:
        _LOG.error("InferenceKey %s/%s lets nobody in: %s", *key, error)  # the sentence says all
        return None


def _to_key(given: InferenceKey) -> ApiKey:
    return ApiKey(
        given.full_name,
        given.digest,
        given.models,
        given.quota,
        given.max_concurrent,
        namespace=given.namespace,
        expires=given.expires,
        weight=given.weight,
    )
