"""The queue that a resource waits in: labels that Kueue reads of whatever it lets start. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
MANAGED = "kueue.x-k8s.io/managed"  # "true" on pods that Kueue lets start, or not


def queue_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return what of a resource's labels its pods need, so that Kueue knows their queue and priority."""
    return {name: value for name, value in (labels or {}).items() if name in {QUEUE, PRIORITY}}


def with_queue(template: Mapping[str, Any], labels: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Return a PodTemplateSpec with the queue of the resource that holds it; what it says itself stays."""
    inherited = queue_labels(labels)
    if not inherited:
        return template
    metadata = template.get("metadata") or {}
    return {**template, "metadata": {**metadata, "labels": {**inherited, **(metadata.get("labels") or {})}}}


def queue_of(labels: Mapping[str, str]) -> str:
    """Return the queue that holds or held a pod, by the pod's labels; "" where nobody manages such queues."""
    return labels.get(QUEUE, "") if labels.get(MANAGED) == "true" else ""
