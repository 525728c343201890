"""What is told to the user once: an Event about a deployment or a pool."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from dormouse_api.names import API_VERSION, KIND
from dormouse_operator.manifests.common import FIELD_MANAGER, Manifest
from dormouse_operator.model import Key
from dormouse_operator.parse import format_time


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something worth telling the user once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def event_manifest(
    event: EventRecord, *, key: Key, uid: str, now: datetime, reporter: str, kind: str = KIND
) -> Manifest:
    """Return the Event about a deployment, or an object of another kind of ours.

    Its name tells when and what, so that a repetition is no second one.
    """
    mark = hashlib.sha256(f"{now.isoformat()}{event.reason}{event.message}".encode()).hexdigest()[:16]
    time = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key.name}.{mark}", "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "count": 1,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": reporter,
    }
