"""Turns Kubernetes' mappings into the operator's nouns, once, at the edge. Pure. Raises only SpecError."""

from dormouse_operator.parse.adapters import parse_offer
from dormouse_operator.parse.arrows import as_stored, parse_arrows
from dormouse_operator.parse.bounds import parse_bound
from dormouse_operator.parse.claims import parse_consumers, parse_devices
from dormouse_operator.parse.memory import parse_allocatable
from dormouse_operator.parse.pods import (
    CONTAINER,
    DEVICE_GRANTS,
    DOWNLOADER,
    MODEL_VOLUME,
    OPERATOR_KEY,
    POOL_CLAIM,
    SLOT,
    SLOT_DEVICES,
    Pods,
    parse_pod,
    parse_pods,
    slot_of,
)
from dormouse_operator.parse.pool import parse_pool
from dormouse_operator.parse.recorded import parse_status
from dormouse_operator.parse.reservation import TELLER, parse_reservation
from dormouse_operator.parse.slots import parse_slot, write_slot, write_time
from dormouse_operator.parse.sources import CACHE_ROOT, IMAGE_ROOT, MODELS_ROOT
from dormouse_operator.parse.spec import DRAFTS_ROOT, parse_deployment
from dormouse_operator.parse.values import Raw, SpecError, format_time, parse_bytes, parse_time
from dormouse_operator.parse.writers import kept_managers

__all__ = [
    "CACHE_ROOT",
    "CONTAINER",
    "DEVICE_GRANTS",
    "DOWNLOADER",
    "DRAFTS_ROOT",
    "IMAGE_ROOT",
    "MODELS_ROOT",
    "MODEL_VOLUME",
    "OPERATOR_KEY",
    "POOL_CLAIM",
    "SLOT",
    "SLOT_DEVICES",
    "TELLER",
    "Pods",
    "Raw",
    "SpecError",
    "as_stored",
    "format_time",
    "kept_managers",
    "parse_allocatable",
    "parse_arrows",
    "parse_bound",
    "parse_bytes",
    "parse_consumers",
    "parse_deployment",
    "parse_devices",
    "parse_offer",
    "parse_pod",
    "parse_pods",
    "parse_pool",
    "parse_reservation",
    "parse_slot",
    "parse_status",
    "parse_time",
    "slot_of",
    "write_slot",
    "write_time",
]
