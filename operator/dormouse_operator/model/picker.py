"""Where other people's gateways ask for an endpoint, and what of an InferencePool was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Picker:
    """The Service by which Envoys reach the endpoint picker of this release's gateways."""

    service: str
    namespace: str
    port: int


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """What there is of a deployment's InferencePool, and whether the cluster knows the kind."""

    is_known_kind: bool
    pool: Mapping[str, Any] | None = None
    # Where the picker is in another namespace: the address of its Service, and what leads there from this one.
    address: str | None = None  # None: it is in the same; "": there is none
    service: Mapping[str, Any] | None = None
    ends: Mapping[str, Any] | None = None  # the EndpointSlice of `service`
