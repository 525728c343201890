"""InferenceKeys → nouns. Pure. Raises nothing: what cannot be read says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dormouse_api.inference_keys import BadInferenceKey, InferenceKey, parse_inference_key
from dormouse_operator.parse.values import Raw


@dataclass(frozen=True, slots=True)
class RecordedKey:
    """An InferenceKey with what its status says."""

    namespace: str
    name: str
    generation: int
    resource_version: str
    key: InferenceKey | None  # None = it cannot be read
    fault: str  # why not
    status: Mapping[str, Any]


def parse_recorded_key(raw: Raw) -> RecordedKey:
    """Return an InferenceKey."""
    metadata = raw["metadata"]
    key, fault = None, ""
    try:
        key = parse_inference_key(raw)
    except BadInferenceKey as error:
        fault = str(error)
    generation, version = int(metadata.get("generation") or 0), str(metadata.get("resourceVersion") or "")
    status = raw.get("status") or {}
    return RecordedKey(metadata["namespace"], metadata["name"], generation, version, key, fault, status)
