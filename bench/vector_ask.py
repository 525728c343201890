"""What a peer that makes vectors is asked, and what it says. Knows no model."""

from __future__ import annotations

import msgspec


class Embed(msgspec.Struct, frozen=True):
    """Texts, as token ids."""

    texts: list[list[int]]


class Embedded(msgspec.Struct, frozen=True):
    """What came of them."""

    seconds: float
    first: list[float]  # the first text's vector
