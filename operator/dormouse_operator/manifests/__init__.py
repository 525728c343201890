"""What the operator writes to the cluster: pods, the Service, the readiness gate, Events. Pure."""

from dormouse_operator.manifests.arguments import worker_arguments
from dormouse_operator.manifests.common import (
    FIELD_MANAGER,
    GRACE_AFTER_DRAIN_S,
    Manifest,
    selector_labels,
    selector_text,
)
from dormouse_operator.manifests.disruption import budget_manifest, parse_budget
from dormouse_operator.manifests.download import claim_manifest, claim_name
from dormouse_operator.manifests.event import EventRecord, event_manifest
from dormouse_operator.manifests.group import ranks_complaint, ranks_service_manifest, ranks_service_name
from dormouse_operator.manifests.inference_pool import (
    parse_inference_pool,
    picker_service_manifest,
    picker_service_name,
    picker_slice_manifest,
    pool_manifest,
)
from dormouse_operator.manifests.memory import memory_manifest
from dormouse_operator.manifests.network import parse_policy, policy_manifest
from dormouse_operator.manifests.pod import (
    WorkerDefaults,
    gate_manifest,
    in_standby,
    pod_manifest,
    revision_manifest,
)
from dormouse_operator.manifests.pool import member_complaint, on_slot, slot_claim_manifest
from dormouse_operator.manifests.pre_pull import parse_pre_pull, pre_pull_manifest, pre_pull_name
from dormouse_operator.manifests.reservation import reservation_manifest, reservation_name, reservation_selector
from dormouse_operator.manifests.resources import claims_complaint, rest_bytes
from dormouse_operator.manifests.revision import choose_image, pod_digest_of, pod_name, revision_of
from dormouse_operator.manifests.service import parse_ranks_service, parse_service, service_manifest
from dormouse_operator.manifests.template import template_complaint

__all__ = [
    "FIELD_MANAGER",
    "GRACE_AFTER_DRAIN_S",
    "EventRecord",
    "Manifest",
    "WorkerDefaults",
    "budget_manifest",
    "choose_image",
    "claim_manifest",
    "claim_name",
    "claims_complaint",
    "event_manifest",
    "gate_manifest",
    "in_standby",
    "member_complaint",
    "memory_manifest",
    "on_slot",
    "parse_budget",
    "parse_inference_pool",
    "parse_policy",
    "parse_pre_pull",
    "parse_ranks_service",
    "parse_service",
    "picker_service_manifest",
    "picker_service_name",
    "picker_slice_manifest",
    "pod_digest_of",
    "pod_manifest",
    "pod_name",
    "policy_manifest",
    "pool_manifest",
    "pre_pull_manifest",
    "pre_pull_name",
    "ranks_complaint",
    "ranks_service_manifest",
    "ranks_service_name",
    "reservation_manifest",
    "reservation_name",
    "reservation_selector",
    "rest_bytes",
    "revision_manifest",
    "revision_of",
    "selector_labels",
    "selector_text",
    "service_manifest",
    "slot_claim_manifest",
    "template_complaint",
    "worker_arguments",
]
