"""What the API server was last heard to hold, by deployment: kept by watches and by the answers to our own writes.

Owns the copies; asks and writes nothing. They are packed (compressed JSON, some 1 KB each), as
thousands of objects are at rest and few are looked at. Of two versions of an object the newer one wins, whoever
brought it, so that what was written is read again at once. Versions are compared as numbers, which they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from dormouse_api.names import LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import (
    DAEMON_SETS,
    DISRUPTION_BUDGETS,
    GPU_POOLS,
    INFERENCE_ADAPTERS,
    INFERENCE_DEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Kind,
    Resource,
)
from dormouse_operator.manifests import pre_pull_name, ranks_service_name
from dormouse_operator.model import AdaptersKey, AnyKey, Key, PoolKey
from dormouse_operator.watch.canaries import Canaries
from dormouse_operator.watch.groups import Entry, Group, Slot, pack
from dormouse_operator.watch.members import Members, pool_named_by
from dormouse_operator.watch.model_names import Claims
from dormouse_operator.watch.snapshots import AdaptersSnapshot, MemberSnapshot, MemberVersion, PoolSnapshot, Snapshot

# What is watched, and the labels that select it.
SELECTORS: dict[Kind, str] = {
    INFERENCE_DEPLOYMENTS: "",
    GPU_POOLS: "",
    INFERENCE_ADAPTERS: "",
    PODS: f"{LABEL_DEPLOYMENT},{LABEL_COMPONENT}",  # workers and followers
    SERVICES: LABEL_DEPLOYMENT,
    DISRUPTION_BUDGETS: LABEL_DEPLOYMENT,
    NETWORK_POLICIES: LABEL_DEPLOYMENT,
    DAEMON_SETS: LABEL_DEPLOYMENT,
}
_REMEMBERED = 4096  # objects that are gone: long enough for every answer that is still under way

_Place = tuple[str, str, str]  # plural, namespace, name


@dataclass(slots=True)
class Cache:
    """The copies. Until `is_complete` says that everything was heard of at least once, nothing may be concluded."""

    is_complete: bool = False
    claims: Claims = field(default_factory=Claims)
    members: Members = field(default_factory=Members)
    canaries: Canaries = field(default_factory=Canaries)
    on_members: Callable[[PoolKey], None] = lambda _: None  # hears of pools whose members changed
    on_adapters: Callable[[AdaptersKey], None] = lambda _: None  # hears of bases whose InferenceAdapters have news
    _groups: dict[AnyKey, Group] = field(default_factory=dict)
    _adapted: set[Key] = field(default_factory=set)  # bases that InferenceAdapters name, there or not
    _gone: OrderedDict[_Place, int] = field(default_factory=OrderedDict)
    _changes: int = 0

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Cache({len(self._groups)} deployments, {self._changes} changes, complete={self.is_complete})"

    def __contains__(self, key: AnyKey) -> bool:
        """Return whether anything is known under this key."""
        return key in self._groups

    @property
    def num_bytes(self) -> int:
        """Return the size of the packed objects."""
        return sum(len(entry.packed) for group in self._groups.values() for entry in group.entries.values())

    def versions(self) -> Iterator[tuple[AnyKey, int]]:
        """Return every deployment, pool and base of InferenceAdapters with the version of its copies.

        A deployment whose name is free has a new one.
        """
        self._touch_all(key for key in self.claims.freed() if key in self._groups)
        yield from ((key, group.version) for key, group in self._groups.items() if _own_slot(key) in group.entries)
        yield from ((AdaptersKey(*key), self._groups[key].version) for key in self._adapted)

    def snapshot(self, key: Key) -> Snapshot | None:
        """Return what is known, None if there is no such deployment."""
        group = self._groups.get(key)
        own = group.get(_own_slot(key)) if group else None
        if group is None or own is None:
            return None
        named = (SERVICES, DISRUPTION_BUDGETS, NETWORK_POLICIES)
        service, budget, policy = (group.get((kind.plural, key.name)) for kind in named)
        pool = PoolKey(key.namespace, pool_named_by(own))
        return Snapshot(
            deployment=own,
            pods=group.of(PODS),
            service=service,
            ranks_service=group.get((SERVICES.plural, ranks_service_name(key.name))),
            budget=budget,
            policy=policy,
            pre_pull=group.get((DAEMON_SETS.plural, pre_pull_name(key.name))),
            rival=self.claims.rival_of(key),
            pool=self._pool(pool),
            adapters=_adapters(group),
            placed=self.members.placed(pool),
            version=group.version,
            made=group.made,
        )

    def pool_snapshot(self, key: PoolKey) -> PoolSnapshot | None:
        """Return what is known of a pool and its members, None if there is no such pool."""
        group = self._groups.get(key)
        pool = group.get(_own_slot(key)) if group else None
        if group is None or pool is None:
            return None
        members = tuple(MemberVersion(member, self._groups[member].version) for member in self.members.of(key))
        return PoolSnapshot(pool, members, group.version)

    def adapters_snapshot(self, key: AdaptersKey) -> AdaptersSnapshot | None:
        """Return the InferenceAdapters that name a base, None if there are none."""
        base = Key(key.namespace, key.name)
        if base not in self._adapted:
            return None
        group = self._groups[base]
        return AdaptersSnapshot(_adapters(group), group.get(_own_slot(base)), group.version)

    def _pool(self, key: PoolKey) -> Resource | None:
        return self._groups[key].get(_own_slot(key)) if key in self._groups else None

    def member_snapshot(self, key: Key) -> MemberSnapshot:
        """Return what is known of a member that `pool_snapshot` has just named."""
        group = self._groups[key]
        return MemberSnapshot(key, group.get(_own_slot(key)), group.of(PODS), group.made)

    def take(self, kind: Kind, obj: Resource, *, is_made: bool = False) -> AnyKey | None:
        """Keep the object unless a newer one is known; return its deployment if something changed.

        `is_made`: it is the answer to a `create` of ours, which is remembered for as long as the object is there.
        """
        key, version = key_of(kind, obj), version_of(obj)
        if key is None or version <= self._gone.get(_place(kind, obj), 0):
            return None
        slot = (kind.plural, obj["metadata"]["name"])
        known = self._groups[key].entries.get(slot) if key in self._groups else None
        uid = obj["metadata"]["uid"]
        is_ours, generation = is_made or bool(known and known.is_made and known.uid == uid), generation_of(obj)
        if known and known.version >= version:
            if known.uid != uid or known.is_made == is_ours:
                return None
            self._groups[key].entries[slot] = known._replace(is_made=True)  # the watch was faster than the answer
            return self._touch(key, self._groups[key])
        if kind is INFERENCE_ADAPTERS and not known:
            self.drop_missing(kind, key.namespace, slot[1])  # one of this name and of another base, gone unheard
        group = self._groups.setdefault(key, Group())
        group.entries[slot] = Entry(version, uid, pack(obj), is_ours, generation)
        if kind is INFERENCE_DEPLOYMENTS and isinstance(key, Key):
            self._touch_all(self.claims.put(obj))
            self.canaries.put(key, obj)
            self._touch_all([] if known else self.canaries.of(key))
        if isinstance(key, Key):
            self._tell_pools(self.members.put(kind, key, obj))
            self._tell_adapters(kind.plural, key)
        if kind is INFERENCE_ADAPTERS and known and (known.uid, known.generation) == (uid, generation):
            return None  # its status alone: of no interest to its base
        return self._touch(key, group)

    def drop(self, kind: Kind, obj: Resource) -> AnyKey | None:
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

    def retain(
        self, kind: Kind, namespace: str | None, names: Collection[tuple[str, str]], version: int
    ) -> list[AnyKey]:
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

    def _holder_of(self, kind: Kind, namespace: str, name: str) -> AnyKey | None:
        """Return whose object this is."""
        slot = (kind.plural, name)
        holders = (key for key, group in self._groups.items() if key.namespace == namespace and slot in group.entries)
        return next(holders, None)

    def _drop(self, key: AnyKey, slot: Slot, uid: str) -> AnyKey | None:
        group = self._groups.get(key)
        known = group.entries.get(slot) if group else None
        if group is None or known is None or known.uid != uid:
            return None
        del group.entries[slot]
        if isinstance(key, Key):
            if slot == _own_slot(key):
                self.canaries.remove(key)
                self._touch_all([*self.claims.remove(key), *self.canaries.of(key)])
            self._tell_pools(self.members.remove(slot[0], key, slot[1]))
            self._tell_adapters(slot[0], key)
        if not group.entries:
            del self._groups[key]
        return self._touch(key, group)

    def _tell_pools(self, pools: Iterable[PoolKey]) -> None:
        """Have pools looked at whose members changed."""
        for pool in pools:
            if pool in self._groups:
                self._touch(pool, self._groups[pool])
                self.on_members(pool)

    def _tell_adapters(self, plural: str, key: Key) -> None:
        """Have InferenceAdapters looked at when one of them, or their base, changed."""
        if plural == INFERENCE_ADAPTERS.plural:
            (self._adapted.add if self._groups[key].has(INFERENCE_ADAPTERS) else self._adapted.discard)(key)
        if plural in {INFERENCE_ADAPTERS.plural, INFERENCE_DEPLOYMENTS.plural} and key in self._adapted:
            self.on_adapters(AdaptersKey(*key))

    def _touch_all(self, keys: Iterable[Key]) -> None:
        """Have deployments looked at again by the next resync."""
        for key in keys:
            self._touch(key, self._groups[key])

    def _touch(self, key: AnyKey, group: Group) -> AnyKey:
        self._changes += 1
        group.version = self._changes
        return key

    def _remember_gone(self, place: _Place, version: int) -> None:
        """Remember until which version an object is gone: a late answer must not bring it back."""
        self._gone[place] = max(version, self._gone.pop(place, 0))
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)


def key_of(kind: Kind, obj: Resource) -> AnyKey | None:
    """Return the pool that the object is, or the deployment that it is, names or was made for; None if for none."""
    metadata = obj["metadata"]
    if kind is GPU_POOLS:
        return PoolKey(metadata["namespace"], metadata["name"])
    if kind is INFERENCE_DEPLOYMENTS:
        return Key(metadata["namespace"], metadata["name"])
    if kind is INFERENCE_ADAPTERS:
        base = (obj.get("spec") or {}).get("base")
        return Key(metadata["namespace"], str(base)) if base else None
    name = (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT)
    return Key(metadata["namespace"], name) if name else None


def _own_slot(key: AnyKey) -> Slot:
    """Return where the object itself is among those of its group."""
    return (INFERENCE_DEPLOYMENTS if isinstance(key, Key) else GPU_POOLS).plural, key.name


def generation_of(obj: Resource) -> int:
    """Return how often the object's spec was changed, 0 where nobody counts that."""
    return int(obj["metadata"].get("generation") or 0)


def version_of(obj: Resource) -> int:
    """Return the object's resource version as a number."""
    return int(obj["metadata"]["resourceVersion"])


def _place(kind: Kind, obj: Resource) -> _Place:
    return kind.plural, obj["metadata"]["namespace"], obj["metadata"]["name"]


def _adapters(group: Group) -> tuple[Resource, ...]:
    """Return the InferenceAdapters that name this base and are not on their way out."""
    return tuple(obj for obj in group.of(INFERENCE_ADAPTERS) if "deletionTimestamp" not in obj["metadata"])
