"""Which of a deployment's replicas compute long prompts, and which go on behind them."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_api.names import DECODE, PREFILL


@dataclass(frozen=True, slots=True)
class Roles:
    """A role is no part of the revision: workers go on with each other's streams, and change it without a restart."""

    prefill_replicas: int  # the first ones

    def role_of(self, index: int) -> str:
        """Return what the replica of this number is for."""
        return PREFILL if index < self.prefill_replicas else DECODE
