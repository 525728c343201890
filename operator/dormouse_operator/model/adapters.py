"""LoRA adapters: what the user wants beside the base model, what workers hold, and what the status says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dormouse_api.hub_uri import SCHEME

HeldState = Literal["PENDING", "LOADED", "FAILED"]
AdapterKind = Literal["", "LoRA", "ActivatedLoRA", "SoftPrompt"]  # "" = nobody has told yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter that shall be served, under a name of its own."""

    name: str
    uri: str
    path: str  # of its directory in the worker's container; of a hub's adapter its URI, for the worker fetches it
    claim: str = ""  # the PersistentVolumeClaim that holds it; "" = the container does
    digest: str = ""  # what it has to be; "" = what lies there when it is loaded first
    is_pinned: bool = False
    token: str = ""  # of the hub: SECRET/KEY; "" = none
    resource: str = ""  # the InferenceAdapter that asks for it; "" = the deployment's own spec does

    @property
    def is_fetched(self) -> bool:
        """Return whether it comes from a hub."""
        return self.path.startswith(SCHEME)

    @property
    def secret(self) -> str:
        """Return the Secret that has its token, "" for none."""
        return self.token.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAdapter:
    """An adapter as a worker tells of it."""

    name: str
    path: str
    state: HeldState
    digest: str = ""  # "" unless it is loaded
    kind: AdapterKind = ""
    rank: int = 0
    virtual_tokens: int = 0  # of a soft prompt
    slot_bytes: int = 0
    progress: str = ""  # how far the fetch of its files is
    failure: str = ""  # why it, or what its name shall mean next, cannot be loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAdapter:
    """An adapter as it stands in the status."""

    name: str
    uri: str
    state: str = ""  # "" = an earlier operator did not say
    digest: str = ""  # "" = it was never loaded
    kind: AdapterKind = ""
    rank: int = 0
    virtual_tokens: int = 0  # of a soft prompt
    slot_bytes: int = 0
    message: str = ""  # why it is no further
    loaded_replicas: int = 0
    replicas: int = 0
    since: str = ""  # RFC 3339: from when on the base has had an adapter of this name; "" = it was not written
    resource: str = ""  # the InferenceAdapter that asked for it; "" = the spec did


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedAdapter:
    """An InferenceAdapter: what somebody wants a base to serve, and the status that the operator wrote last."""

    resource: str  # its name, in the namespace of the base
    uid: str
    created: str  # RFC 3339 in UTC: sorts by time
    generation: int
    resource_version: str
    wanted: Adapter | None  # None: it cannot be read
    fault: str = ""  # why it cannot
    raw: Mapping[str, Any] = field(default_factory=dict)  # its status
