"""Who wrote the replicas of an InferenceDeployment last, by the fields that the API server says are theirs. Pure."""

from __future__ import annotations

from typing import Any

from dormouse_operator.parse.values import Raw

_REPLICAS: dict[str, Any] = {"f:spec": {"f:replicas": {}}}


def parse_writers(metadata: Raw) -> tuple[str, ...]:
    """Return the managers of `spec.replicas`: one, or several who applied the same number; () where nobody did."""
    return tuple(sorted({entry["manager"] for entry in kept_managers(metadata)}))


def kept_managers(metadata: Raw) -> list[dict[str, Any]]:
    """Return of the managers those that `parse_writers` reads, without their other fields."""
    entries = metadata.get("managedFields") or ()
    owners = (entry for entry in entries if "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {}))
    return [{"manager": entry.get("manager", ""), "fieldsV1": _REPLICAS} for entry in owners]
