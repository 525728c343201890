"""What the API server was last heard to hold, by deployment: kept by watches and by the answers to our own writes.

Owns the copies; asks and writes nothing. They are packed (compressed JSON without managedFields, some 1 KB each), as
thousands of objects are at rest and few are looked at. Of two versions of an object the newer one wins, whoever
brought it, so that what was written is read again at once. Versions are compared as numbers, which they are.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dormouse_api.names import LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import (
    DISRUPTION_BUDGETS,
    INFERENCE_DEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Kind,
    Resource,
)
from dormouse_operator.manifests import ranks_service_name
from dormouse_operator.model import Key
from dormouse_operator.watch.model_names import Claims

# What is watched, and the labels that select it.
SELECTORS: dict[Kind, str] = {
    INFERENCE_DEPLOYMENTS: "",
    PODS: f"{LABEL_DEPLOYMENT},{LABEL_COMPONENT}",  # workers and followers
    SERVICES: LABEL_DEPLOYMENT,
    DISRUPTION_BUDGETS: LABEL_DEPLOYMENT,
    NETWORK_POLICIES: LABEL_DEPLOYMENT,
}
_REMEMBERED = 4096  # objects that are gone: long enough for every answer that is still under way

Slot = tuple[str, str]  # plural, name
_Place = tuple[str, str, str]  # plural, namespace, name


class Snapshot(NamedTuple):
    """A deployment and what was made for it, as last heard of."""

    deployment: Resource
    pods: tuple[Resource, ...]
    service: Resource | None  # the one of the deployment's name
    ranks_service: Resource | None  # the one under which the pods of groups find each other
    budget: Resource | None  # the disruption budget of the deployment's name
    policy: Resource | None  # the network policy of the deployment's name
    rival: str  # who has its model name, or had it lately, as NAMESPACE/NAME; "" = itself
    version: int  # of the copies: another one means that something changed
    made: frozenset[str]  # UIDs of pods that the API server gave us as answers to `create`


class _Entry(NamedTuple):
    version: int
    uid: str
    packed: bytes
    is_made: bool = False  # it was an answer to our own `create`


@dataclass(slots=True)
class _Group:
    """The objects of one deployment."""

    entries: dict[Slot, _Entry] = field(default_factory=dict)
    version: int = 0


@dataclass(slots=True)
class Cache:
    """The copies. Until `is_complete` says that everything was heard of at least once, nothing may be concluded."""

    is_complete: bool = False
    claims: Claims = field(default_factory=Claims)
    _groups: dict[Key, _Group] = field(default_factory=dict)
    _gone: OrderedDict[_Place, int] = field(default_factory=OrderedDict)
    _changes: int = 0

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Cache({len(self._groups)} deployments, {self._changes} changes, complete={self.is_complete})"

    def __contains__(self, key: Key) -> bool:
        """Return whether anything is known under this key."""
        return key in self._groups

    @property
    def num_bytes(self) -> int:
        """Return the size of the packed objects."""
        return sum(len(entry.packed) for group in self._groups.values() for entry in group.entries.values())

    def versions(self) -> Iterator[tuple[Key, int]]:
        """Return every deployment that exists with the version of its copies; one whose name is free has a new one."""
        self._touch_all(key for key in self.claims.freed() if key in self._groups)
        slot_of = INFERENCE_DEPLOYMENTS.plural
        return ((key, group.version) for key, group in self._groups.items() if (slot_of, key.name) in group.entries)

    def snapshot(self, key: Key) -> Snapshot | None:
        """Return what is known, None if there is no such deployment."""
        group = self._groups.get(key)
        if group is None or (INFERENCE_DEPLOYMENTS.plural, key.name) not in group.entries:
            return None
        entries = sorted(group.entries.items())
        pods = tuple(_unpack(entry) for (plural, _), entry in entries if plural == PODS.plural)
        named = (SERVICES, DISRUPTION_BUDGETS, NETWORK_POLICIES)
        service, budget, policy = (group.entries.get((kind.plural, key.name)) for kind in named)
        ranks_service = group.entries.get((SERVICES.plural, ranks_service_name(key.name)))
        return Snapshot(
            deployment=_unpack(group.entries[INFERENCE_DEPLOYMENTS.plural, key.name]),
            pods=pods,
            service=_unpack(service) if service else None,
            ranks_service=_unpack(ranks_service) if ranks_service else None,
            budget=_unpack(budget) if budget else None,
            policy=_unpack(policy) if policy else None,
            rival=self.claims.rival_of(key),
            version=group.version,
            made=frozenset(entry.uid for entry in group.entries.values() if entry.is_made),
        )

    def take(self, kind: Kind, obj: Resource, *, is_made: bool = False) -> Key | None:
        """Keep the object unless a newer one is known; return its deployment if something changed.

        `is_made`: it is the answer to a `create` of ours, which is remembered for as long as the object is there.
        """
        key, version = key_of(kind, obj), version_of(obj)
        if key is None or version <= self._gone.get(_place(kind, obj), 0):
            return None
        slot = (kind.plural, obj["metadata"]["name"])
        known = self._groups[key].entries.get(slot) if key in self._groups else None
        uid = obj["metadata"]["uid"]
        is_ours = is_made or bool(known and known.is_made and known.uid == uid)
        if known and known.version >= version:
            if known.uid != uid or known.is_made == is_ours:
                return None
            self._groups[key].entries[slot] = known._replace(is_made=True)  # the watch was faster than the answer
            return self._touch(key, self._groups[key])
        group = self._groups.setdefault(key, _Group())
        group.entries[slot] = _Entry(version, uid, _pack(obj), is_ours)
        if kind is INFERENCE_DEPLOYMENTS:
            self._touch_all(self.claims.put(obj))
        return self._touch(key, group)

    def drop(self, kind: Kind, obj: Resource) -> Key | None:
        """Forget the object, unless another one has its name by now; return its deployment if something changed."""
        namespace, name, uid = (obj["metadata"][part] for part in ("namespace", "name", "uid"))
        self._remember_gone(_place(kind, obj), version_of(obj))
        key = key_of(kind, obj) or self._holder_of(kind, namespace, name)
        return self._drop(key, (kind.plural, name), uid) if key else None

    def drop_missing(self, kind: Kind, namespace: str, name: str, uid: str = "") -> None:
        """Forget an object of which the API server said that it does not exist; without UID, whichever it is."""
        key, slot = self._holder_of(kind, namespace, name), (kind.plural, name)
        if key is not None:
            self._drop(key, slot, uid or self._groups[key].entries[slot].uid)

    def retain(self, kind: Kind, namespace: str | None, names: Collection[tuple[str, str]], version: int) -> list[Key]:
        """Forget what a whole list in this version does not name; return the deployments concerned."""
        vanished = [
            (key, name, entry)
            for key, group in self._groups.items()
            for (plural, name), entry in group.entries.items()
            if plural == kind.plural and namespace in {None, key.namespace}
            if entry.version <= version and (key.namespace, name) not in names
        ]
        for key, name, entry in vanished:
            self._remember_gone((kind.plural, key.namespace, name), version)
            self._drop(key, (kind.plural, name), entry.uid)
        return [key for key, _, _ in vanished]

    def _holder_of(self, kind: Kind, namespace: str, name: str) -> Key | None:
        """Return whose object this is."""
        slot = (kind.plural, name)
        holders = (key for key, group in self._groups.items() if key.namespace == namespace and slot in group.entries)
        return next(holders, None)

    def _drop(self, key: Key, slot: Slot, uid: str) -> Key | None:
        group = self._groups.get(key)
        known = group.entries.get(slot) if group else None
        if group is None or known is None or known.uid != uid:
            return None
        del group.entries[slot]
        if slot == (INFERENCE_DEPLOYMENTS.plural, key.name):
            self._touch_all(self.claims.remove(key))
        if not group.entries:
            del self._groups[key]
        return self._touch(key, group)

    def _touch_all(self, keys: Iterable[Key]) -> None:
        """Have deployments looked at again by the next resync."""
        for key in keys:
            self._touch(key, self._groups[key])

    def _touch(self, key: Key, group: _Group) -> Key:
        self._changes += 1
        group.version = self._changes
        return key

    def _remember_gone(self, place: _Place, version: int) -> None:
        """Remember until which version an object is gone: a late answer must not bring it back."""
        self._gone[place] = max(version, self._gone.pop(place, 0))
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)


def key_of(kind: Kind, obj: Resource) -> Key | None:
    """Return the deployment that the object is, or was made for; None if for none."""
    metadata = obj["metadata"]
    if kind is INFERENCE_DEPLOYMENTS:
        return Key(metadata["namespace"], metadata["name"])
    name = (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT)
    return Key(metadata["namespace"], name) if name else None


def version_of(obj: Resource) -> int:
    """Return the object's resource version as a number."""
    return int(obj["metadata"]["resourceVersion"])


def _place(kind: Kind, obj: Resource) -> _Place:
    return kind.plural, obj["metadata"]["namespace"], obj["metadata"]["name"]


def _pack(obj: Resource) -> bytes:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return zlib.compress(json.dumps({**obj, "metadata": metadata}, separators=(",", ":")).encode(), level=1)


def _unpack(entry: _Entry) -> dict[str, Any]:
    unpacked: dict[str, Any] = json.loads(zlib.decompress(entry.packed))
    return unpacked
