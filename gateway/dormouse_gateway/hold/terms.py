"""What waiting requests are bound by: what they wait for, how long, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WaitReason(StrEnum):
    """What a line waits for."""

    COLD = "cold"  # no worker takes requests: one must start or wake
    FAILING = "failing"  # the same, and the last start or wake went wrong
    SATURATED = "saturated"  # those that take requests are full


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """What a line waits for, and how long a request of it waits at most."""

    regime: WaitReason
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLimits:
    """What is held at most, beside the number of requests that each deployment sets for itself."""

    max_bytes: int  # of the requests of one deployment
    max_total_requests: int  # over all deployments
    max_total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSettings:
    """See the gateway's settings."""

    limits: HoldLimits
    saturated_timeout_s: float
    worker_queue: int


class HoldFull(Exception):
    """A request does not fit; the message names the limit."""
