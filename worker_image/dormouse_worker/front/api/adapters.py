"""What a caller wrote of an adapter, checked, and what a worker tells of one. Pure."""

from __future__ import annotations

import re

import grpc

from dormouse_api.hub_uri import SCHEME, parse_hub_uri
from dormouse_api.status import CallError
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.engine.adapter_board import AdapterBoard, WantedAdapter

MAX_PATH = 4096  # characters
MAX_SET_DIGEST = 64  # characters
_FILE = "file://"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}/(?!\.\.?$)[-A-Za-z0-9._]{1,253}")
_ALLOWED_URIS = "allowed: file:// and an absolute path of this pod, or hf://ORG/NAME@REVISION"


def read_wanted(request: pb.AddLoraRequest | pb.LoraSpec) -> WantedAdapter:
    """Return what is asked for; the name is the board's to check. Raises CallError INVALID_ARGUMENT."""
    source = request.uri.removeprefix(_FILE)
    if parse_hub_uri(source) is None and (not source.startswith("/") or len(source) > MAX_PATH or "\0" in source):
        raise _invalid(f"uri is {request.uri[:200]!r}; {_ALLOWED_URIS}")
    if request.token and not _TOKEN.fullmatch(request.token):
        raise _invalid(f"token is {request.token[:200]!r}; allowed: SECRET/KEY, or none")
    if request.digest and not _DIGEST.fullmatch(request.digest):
        raise _invalid(f"digest is {request.digest[:200]!r}; allowed: 64 hexadecimal digits in lower case, or none")
    return WantedAdapter(request.name, source, request.digest, request.pinned, request.token)


def read_set(request: pb.SetLorasRequest) -> tuple[WantedAdapter, ...]:
    """Return what is asked for; the names are the board's to check. Raises CallError INVALID_ARGUMENT."""
    if len(request.digest) > MAX_SET_DIGEST:
        raise _invalid(f"digest has {len(request.digest)} characters; allowed are {MAX_SET_DIGEST}")
    return tuple(read_wanted(each) for each in request.adapters)


def to_adapter(wanted: WantedAdapter) -> pb.LoraAdapter:
    """Return what is known of it."""
    loaded = wanted.loaded
    uri = wanted.source if wanted.source.startswith(SCHEME) else f"{_FILE}{wanted.source}"
    told = pb.LoraAdapter(name=wanted.name, uri=uri, pinned=wanted.is_pinned, progress=wanted.progress)
    told.state = pb.LORA_STATE_PENDING
    if loaded is not None:
        told.state, told.digest, told.rank = pb.LORA_STATE_LOADED, loaded.digest, loaded.rank
        told.slot_bytes, told.kind, told.virtual_tokens = loaded.num_bytes, _kind(loaded), loaded.num_virtual_tokens
        told.invocation_token_ids.extend(loaded.invocation)
    if wanted.failure is not None:
        told.state = told.state if loaded else pb.LORA_STATE_FAILED
        told.failure.reason, told.failure.message = wanted.failure
    return told


def to_adapters(board: AdapterBoard, settings: EngineSettings) -> pb.ListLorasResponse:
    """Return all of them, and how many there may be."""
    told = pb.ListLorasResponse(adapters=[to_adapter(wanted) for wanted in board])
    if settings.enable_lora:
        told.max_loras, told.max_lora_rank = settings.max_loras, settings.max_lora_rank
        told.max_cpu_loras = settings.max_cpu_loras or settings.max_loras
    return told


def _kind(info: AdapterInfo) -> pb.LoraKind.ValueType:
    if info.num_virtual_tokens:
        return pb.LORA_KIND_SOFT_PROMPT
    return pb.LORA_KIND_ACTIVATED_LORA if info.invocation else pb.LORA_KIND_LORA


def _invalid(message: str) -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, message)
