"""Bytes in words for people: the operator's sentences say memory in GiB. Pure."""

from __future__ import annotations

MIB, GIB = 2**20, 2**30
MEASURED, ROUND = ".2f", ".4g"  # digits of what was measured, and of a limit that somebody wrote


def in_gib(num_bytes: int, digits: str = MEASURED) -> str:
    """Return bytes as GiB, for a sentence."""
    return f"{num_bytes / GIB:{digits}} GiB"
