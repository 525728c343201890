"""What an InferenceKey says, and which of several with one digest counts. Pure: operator and gateways share it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dormouse_api.quotas import Quota

_DIGEST = re.compile("[0-9a-f]{64}")
EVERY_MODEL = "*"
LIMITS = ("requestsPerMinute", "requestsPerDay", "tokensPerMinute", "tokensPerDay")  # in the order of Quota


class BadInferenceKey(ValueError):
    """An InferenceKey cannot be read; the message names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceKey:
    """One InferenceKey. The digest is compared, never shown."""

    namespace: str
    name: str
    created: str  # as the API server writes it, so that texts are ordered as times are
    digest: bytes  # SHA-256
    models: frozenset[str] | None = None  # None = all of its namespace
    expires: datetime | None = None  # None = never
    quota: Quota = field(default_factory=Quota)
    max_concurrent: int | None = None  # None = any number
    weight: int = 1

    def __repr__(self) -> str:
        """Name it."""
        return f"InferenceKey({self.full_name})"

    @property
    def full_name(self) -> str:
        """Return NAMESPACE/NAME, which no other key is called: names of files hold no slash."""
        return f"{self.namespace}/{self.name}"

    @property
    def age(self) -> tuple[str, str, str]:
        """Return what orders keys from the oldest to the youngest."""
        return self.created, self.namespace, self.name

    def is_over(self, now: datetime) -> bool:
        """Return whether the key has expired."""
        return self.expires is not None and self.expires <= now


def parse_inference_key(obj: Mapping[str, Any]) -> InferenceKey:
    """Return the key that an object describes. Raises BadInferenceKey where the schema was not kept to."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    digest, models = spec.get("sha256"), spec.get("models")
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise BadInferenceKey("spec.sha256 is not there or no text of 64 hexadecimal digits")
    return InferenceKey(
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        digest=bytes.fromhex(digest),
        models=None if models is None or EVERY_MODEL in models else frozenset(models),
        expires=_time("spec.expires", spec.get("expires")),
        quota=Quota(*(_count(f"spec.{name}", spec.get(name)) for name in LIMITS)),
        weight=_count("spec.weight", spec.get("weight")) or 1,
        max_concurrent=_count("spec.maxConcurrent", spec.get("maxConcurrent")),
    )


def holders(keys: Iterable[InferenceKey]) -> dict[bytes, InferenceKey]:
    """Return the key that counts of those with each digest: the oldest. Nobody takes a key over by copying it."""
    return {key.digest: key for key in sorted(keys, key=lambda key: key.age, reverse=True)}


def _time(field: str, value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise BadInferenceKey(f"{field} is {value!r}; allowed are times as 2027-01-31T00:00:00Z") from error
    if time.tzinfo is None:
        raise BadInferenceKey(f"{field} is {value!r}, without a zone; allowed are times as 2027-01-31T00:00:00Z")
    return time


def _count(field: str, value: Any) -> int | None:
    if value is None:
        return None
    if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        raise BadInferenceKey(f"{field} is {value!r}; allowed are whole numbers from 1")
    return value
