"""What a peer is asked for, one answer at a time, and what it made of it. Imports nothing that a peer may not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class PeerAsk(msgspec.Struct, frozen=True):
    """One answer; with a schema it is bound, without blanks."""

    prompt: tuple[int, ...]
    max_tokens: int
    schema: Mapping[str, Any] | None = None
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0


class PeerSaid(msgspec.Struct, frozen=True):
    """What came of it."""

    num_tokens: int
    finish_reason: str
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Return output tokens per second of wall time."""
        return self.num_tokens / self.seconds
