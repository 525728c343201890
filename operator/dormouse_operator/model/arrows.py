"""Which connections the release lets workers have, as rules of NetworkPolicies. The chart decides that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Rules = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Arrows:
    """Rules as the API server stores them: what it leaves out is left out, what it adds is there."""

    ingress: Rules  # who may connect to workers
    egress: Rules  # to whom workers may
    rank_ports: Rules  # on which ports the pods of a group reach each other
    rank_egress: Rules  # what else they need to find each other
