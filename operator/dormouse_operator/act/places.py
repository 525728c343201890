"""Gives pods of pools' members their slots. Owns the places of pods that are being created and not yet in the cache.

Members are looked at side by side: without it, a dozen that are applied at once would all take the first slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dormouse_operator.decide.pools.places import choose_slot
from dormouse_operator.model import PoolKey
from dormouse_operator.model.pools import Pool, Replica
from dormouse_operator.watch.cache import Cache


class Places:
    """The slots that are taken, or about to be."""

    def __init__(self, cache: Cache) -> None:
        """Take what knows of the pods that are there."""
        self._cache = cache
        self._coming: dict[PoolKey, dict[Replica, str]] = {}

    def __repr__(self) -> str:
        """Show how many are about to be taken."""
        return f"Places({sum(map(len, self._coming.values()))} coming)"

    @contextmanager
    def reserve(self, pool: Pool, replica: Replica) -> Iterator[str | None]:
        """Keep a slot for a replica while its pod is created; None where there is no place."""
        key = PoolKey(*pool.key)
        coming = self._coming.setdefault(key, {})
        placed: Mapping[Replica, str] = {**self._cache.members.placed(key), **coming}
        slot = choose_slot(pool, replica, placed)
        if slot is not None:
            coming[replica] = slot
        try:
            yield slot
        finally:
            coming.pop(replica, None)
            if not coming:
                self._coming.pop(key, None)
