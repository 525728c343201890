"""Adapters between the wire and the operator's nouns. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_operator.model.adapters import Adapter, AdapterKind, HeldAdapter, HeldState

_FILE = "file://"
_MAX_WORDS = 1024  # of a worker's reason
_MAX_BYTES = 2**63 - 1  # the largest number that the status has room for
_STATES: Mapping[int, HeldState] = {pb.LORA_STATE_LOADED: "LOADED", pb.LORA_STATE_FAILED: "FAILED"}
_KINDS: Mapping[int, AdapterKind] = {
    pb.LORA_KIND_LORA: "LoRA",
    pb.LORA_KIND_ACTIVATED_LORA: "ActivatedLoRA",
    pb.LORA_KIND_SOFT_PROMPT: "SoftPrompt",
}


def write_adapter(adapter: Adapter) -> pb.LoraSpec:
    """Return what a worker is told of an adapter."""
    uri = adapter.path if adapter.is_fetched else f"{_FILE}{adapter.path}"
    return pb.LoraSpec(name=adapter.name, uri=uri, digest=adapter.digest, pinned=adapter.is_pinned, token=adapter.token)


def parse_adapter(told: pb.LoraAdapter) -> HeldAdapter:
    """Return what a worker tells of an adapter."""
    return HeldAdapter(
        name=told.name,
        path=told.uri.removeprefix(_FILE),
        state=_STATES.get(told.state, "PENDING"),
        digest=told.digest[:64],
        kind=_KINDS.get(told.kind, ""),
        rank=min(told.rank, 2**31 - 1),
        virtual_tokens=min(told.virtual_tokens, 2**31 - 1),
        slot_bytes=min(told.slot_bytes, _MAX_BYTES),
        progress=told.progress[:_MAX_WORDS],
        failure=told.failure.message[:_MAX_WORDS],
    )
