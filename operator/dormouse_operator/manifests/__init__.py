"""What the operator writes to the cluster: pods, the Service, the readiness gate, Events. Pure."""

from dormouse_operator.manifests.common import FIELD_MANAGER, Manifest, selector_labels, selector_text
from dormouse_operator.manifests.event import Occurrence, event_manifest
from dormouse_operator.manifests.pod import (
    WorkerDefaults,
    gate_manifest,
    pod_manifest,
    revision_manifest,
    worker_arguments,
)
from dormouse_operator.manifests.revision import choose_image, pod_digest_of, pod_name, revision_of
from dormouse_operator.manifests.service import parse_service, service_manifest

__all__ = [
    "FIELD_MANAGER",
    "Manifest",
    "Occurrence",
    "WorkerDefaults",
    "choose_image",
    "event_manifest",
    "gate_manifest",
    "parse_service",
    "pod_digest_of",
    "pod_manifest",
    "pod_name",
    "revision_manifest",
    "revision_of",
    "selector_labels",
    "selector_text",
    "service_manifest",
    "worker_arguments",
]
