"""What became of blocks between a cache and its store since the last message."""

from __future__ import annotations

from collections import Counter

import msgspec

from dormouse_worker.common.ipc import StoreCounts
from dormouse_worker.kv_store.interface import Miss


class StoreTally:
    """Owns the counts."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"StoreTally({dict(self._counted)}, misses={dict(self._misses)})"

    def count(self, **counted: int) -> None:
        """Add to fields of `StoreCounts`."""
        self._counted.update(counted)

    def miss(self, miss: Miss, count: int = 1) -> None:
        """Blocks were not read, or not kept."""
        self._misses[str(miss)] += count

    def take(self, stored_bytes: int) -> StoreCounts | None:
        """Return what was counted since the last call; None = nothing."""
        if not self._misses and not self._counted:
            return None
        counts = StoreCounts(misses=dict(self._misses), stored_bytes=stored_bytes)
        counts = msgspec.structs.replace(counts, **self._counted)
        self._counted.clear()
        self._misses.clear()
        return counts
