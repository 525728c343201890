"""Which fields of a status the API server did not keep: its definition of the resource is older than we. Pure.

It says nothing of that itself: what its schema does not know it takes away, and answers that all is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def dropped_fields(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of what was sent in a merge patch and is not in the status that came back, in order."""
    return tuple(sorted(set(_missing(sent, kept, ""))))


def _missing(sent: Any, kept: Any, path: str) -> Iterator[str]:
    if isinstance(sent, Mapping) and isinstance(kept, Mapping):
        for name, value in sent.items():
            inner = f"{path}.{name}" if path else name
            if value is not None and name not in kept:
                yield inner
            else:
                yield from _missing(value, kept.get(name), inner)
    if isinstance(sent, list) and isinstance(kept, list):
        for one, other in zip(sent, kept, strict=False):
            yield from _missing(one, other, f"{path}[]")
