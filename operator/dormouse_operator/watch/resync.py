"""Finds what marks missed: compares the cache with what the last passes saw. Pure; asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dormouse_operator.model import AdaptersKey, AnyKey, Key, PoolKey
from dormouse_operator.watch.cache import Cache

Seen = Mapping[Key, int] | Mapping[PoolKey, int] | Mapping[AdaptersKey, int]


def find_unseen(cache: Cache, seen: Iterable[Seen]) -> list[AnyKey]:
    """Return the keys whose objects are not as they were seen, by all who look: changed, new or gone."""
    known: dict[AnyKey, int] = {key: version for part in seen for key, version in part.items()}
    versions = dict(cache.versions())
    changed = [key for key, version in versions.items() if known.get(key) != version]
    return changed + [key for key in known if key not in versions]
