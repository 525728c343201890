"""LoRA adapters: what the user wants beside the base model, what workers hold, and what the status says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HeldState = Literal["PENDING", "LOADED", "FAILED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter that shall be served, under a name of its own."""

    name: str
    uri: str
    path: str  # of its directory in the worker's container
    claim: str = ""  # the PersistentVolumeClaim that holds it; "" = the container does
    digest: str = ""  # what it has to be; "" = what lies there when it is loaded first
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAdapter:
    """An adapter as a worker tells of it."""

    name: str
    path: str
    state: HeldState
    digest: str = ""  # "" unless it is loaded
    rank: int = 0
    slot_bytes: int = 0
    failure: str = ""  # why it, or what its name shall mean next, cannot be loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAdapter:
    """An adapter as it stands in the status."""

    name: str
    uri: str
    state: str = ""  # "" = an earlier operator did not say
    digest: str = ""  # "" = it was never loaded
    rank: int = 0
    slot_bytes: int = 0
