"""Finds what marks missed: compares the cache with what the last passes saw. Pure; asks nobody."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_operator.model import Key
from dormouse_operator.watch.cache import Cache


def find_unseen(cache: Cache, seen: Mapping[Key, int]) -> list[Key]:
    """Return the keys whose objects are not as they were seen: changed, new or gone."""
    versions = dict(cache.versions())
    changed = [key for key, version in versions.items() if seen.get(key) != version]
    return changed + [key for key in seen if key not in versions]
