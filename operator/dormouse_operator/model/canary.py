"""A deployment that takes a share of another one's requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """spec.canary as far as the operator reads it, and what the status says of this try."""

    of: str  # the other one's name, in the same namespace
    weight: int  # percent of its requests
    is_paused: bool
    try_name: str  # another spec is another try
    aborted_as: str = ""  # why it was aborted, as the status says; "" = it was not
