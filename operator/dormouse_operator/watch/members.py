"""Which deployments have to do with which pool: those that name it, and those that have pods on its slots. Pure.

A deployment that moved to another pool is found under both until its last pod has left the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dormouse_api.names import LABEL_REPLICA
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, Kind, Resource
from dormouse_operator.model import Key, PoolKey
from dormouse_operator.model.pools import Replica
from dormouse_operator.parse import slot_of

_Place = tuple[str, str, str]  # plural, namespace, name


class _Named(NamedTuple):
    """What an object says of a pool."""

    pool: PoolKey
    key: Key
    slot: str = ""  # of a pod
    replica: Replica | None = None  # whose pod it is


class Members:
    """The objects that name a pool."""

    def __init__(self) -> None:
        """Know of nobody."""
        self._named: dict[_Place, _Named] = {}
        self._by_pool: dict[PoolKey, dict[_Place, _Named]] = {}
        self._by_key: dict[Key, dict[_Place, _Named]] = {}

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Members({len(self._by_key)} in {len(self._by_pool)} pools)"

    def of(self, pool: PoolKey) -> list[Key]:
        """Return the deployments of a pool, by name."""
        return sorted({named.key for named in self._by_pool.get(pool, {}).values()})

    def pools_of(self, key: Key) -> list[PoolKey]:
        """Return the pools of a deployment: more than one while it moves."""
        return sorted({named.pool for named in self._by_key.get(key, {}).values()})

    def placed(self, pool: PoolKey) -> Mapping[Replica, str]:
        """Return the slots that replicas have pods on."""
        return {named.replica: named.slot for named in self._by_pool.get(pool, {}).values() if named.replica}

    def put(self, kind: Kind, key: Key, obj: Resource) -> set[PoolKey]:
        """Take an object of a deployment as it is now; return the pools that it names, or named."""
        place = (kind.plural, key.namespace, obj["metadata"]["name"])
        before = self._forget(place)
        named = _named_by(kind, key, obj)
        if named is None:
            return before
        self._named[place] = named
        self._by_pool.setdefault(named.pool, {})[place] = named
        self._by_key.setdefault(key, {})[place] = named
        return {*before, named.pool}

    def remove(self, plural: str, key: Key, name: str) -> set[PoolKey]:
        """Forget an object; return the pool that it named."""
        return self._forget((plural, key.namespace, name))

    def _forget(self, place: _Place) -> set[PoolKey]:
        named = self._named.pop(place, None)
        if named is None:
            return set()
        del self._by_pool[named.pool][place], self._by_key[named.key][place]
        if not self._by_pool[named.pool]:
            del self._by_pool[named.pool]
        if not self._by_key[named.key]:
            del self._by_key[named.key]
        return {named.pool}


def pool_named_by(deployment: Resource) -> str:
    """Return the pool that a deployment's spec names, also one that cannot be read; "" for none."""
    pool = ((deployment.get("spec") or {}).get("gpu") or {}).get("pool") or {}
    return str(pool.get("name") or "")


def _named_by(kind: Kind, key: Key, obj: Resource) -> _Named | None:
    """Return what an object says of a pool, None if it says nothing."""
    if kind is PODS and (slot := slot_of(obj)):
        label = (obj["metadata"].get("labels") or {}).get(LABEL_REPLICA, "")
        index = int(label) if label.isdecimal() else -1
        return _Named(PoolKey(key.namespace, slot.rpartition("-")[0]), key, slot, Replica(key, index))
    name = pool_named_by(obj) if kind is INFERENCE_DEPLOYMENTS else ""
    return _Named(PoolKey(key.namespace, name), key) if name else None
