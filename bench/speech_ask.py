"""What a Whisper peer is asked, and what it says. Knows no model."""

from __future__ import annotations

import msgspec


class Hear(msgspec.Struct, frozen=True):
    """One window."""

    samples: str  # a file of float32 at 16 kHz
    prompt: tuple[int, ...]
    suppressed: tuple[int, ...]  # the end among them: answers have exactly so many tokens
    num_tokens: int


class Heard(msgspec.Struct, frozen=True):
    """What came of it."""

    tokens: list[int]
    seconds: float
