"""Reads the cache, the load, the workers and the claims of a pool into one frozen PoolObserved. Decides nothing.

Every worker with a pod on a slot is asked: what may hold memory is not believed from memory. A claim is looked at where
its devices are not known yet, or a pod is new there, and now and then: an allocation stays as long as its pods, unless
somebody takes it by force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from dormouse_kube.api import PODS, RESOURCE_CLAIMS, KubeApi, Resource
from dormouse_kube.errors import Forbidden, Unavailable
from dormouse_operator.decide.made import sort_out
from dormouse_operator.decide.release import Release
from dormouse_operator.manifests import reservation_name, reservation_selector
from dormouse_operator.model import UNMADE, Key, Pod, PoolKey, Worker, WorkerState
from dormouse_operator.model.pool_observed import Member, PoolObserved, SlotClaim
from dormouse_operator.model.pools import Pool, Replica
from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.observe.worker_statuses import Answer, Statuses
from dormouse_operator.parse import (
    SpecError,
    parse_consumers,
    parse_deployment,
    parse_devices,
    parse_pods,
    parse_pool,
    parse_reservation,
)
from dormouse_operator.watch.cache import Cache
from dormouse_operator.watch.snapshots import MemberVersion, PoolSnapshot

_SETTLED = {WorkerState.ASLEEP, WorkerState.STANDBY, WorkerState.FAILED}  # nothing changes there without a command
_FIRST_SEEN = 0.0
_CLAIM_HOLDS = timedelta(seconds=15)  # so long an allocation is believed


class PoolObservation(NamedTuple):
    """What was observed, of which version, and whether workers tell by themselves when they change."""

    observed: PoolObserved
    resource_version: str
    is_told: bool


class _Claims(NamedTuple):
    """The claims of a pool that were allocated when they were looked at, of which pool, and when that was."""

    uid: str
    allocated: Mapping[str, tuple[SlotClaim, datetime]]


class _Read(NamedTuple):
    """A member without what changes by the second, as the cache had it in this version."""

    version: int
    member: Member


class PoolObserver:
    """Makes PoolObserved. Raises SpecError, KubeError, and Unavailable before the cache was filled."""

    def __init__(
        self,
        kube: KubeApi,
        cache: Cache,
        statuses: Statuses,
        *,
        release: Release,
        activities: ActivityBook,
        clock: Callable[[], datetime],
    ) -> None:
        """Take the worlds, how pods are known that an operator made, and the load."""
        self._kube = kube
        self._cache = cache
        self._statuses = statuses
        self._release = release
        self._activities = activities
        self._clock = clock
        self._silent: dict[PoolKey, dict[str, datetime]] = {}  # by UID of the pod: since when it gave no answer
        self._claims: dict[PoolKey, _Claims] = {}
        self._read: dict[PoolKey, dict[Key, _Read]] = {}

    def __repr__(self) -> str:
        """Show the counts."""
        return f"PoolObserver({len(self._claims)} pools, {sum(map(len, self._silent.values()))} workers silent)"

    def look(self, key: PoolKey) -> PoolSnapshot | None:
        """Return what is known of the pool, None if it is gone. Raises Unavailable while nothing can be told."""
        if not self._cache.is_complete:
            raise Unavailable("the cluster was not listed yet")
        return self._cache.pool_snapshot(key)

    async def observe(self, key: PoolKey, snapshot: PoolSnapshot, refused: Mapping[Replica, int]) -> PoolObservation:
        """Return what there is. `refused` is what was heard of the last orders."""
        pool = parse_pool(snapshot.pool)
        members = self._members(key, pool, snapshot.members)
        pods = [pod for member in members.values() for pod in member.pods]
        answers, is_told = await self._ask_all(key, pods)
        now = self._clock()
        observed = PoolObserved(
            pool=pool,
            now=now,
            members=members,
            answers=answers,
            silent_s=self._note_silent(key, [pod for pod in pods if pod.uid not in answers], now),
            refused=refused,
            claims=await self._claims_of(key, pool, pods, now),
            gateways_heard=self._activities.is_known,
        )
        return PoolObservation(observed, snapshot.pool["metadata"]["resourceVersion"], is_told)

    def refresh(self, key: PoolKey | Key) -> None:
        """Note that workers were given commands."""
        self._statuses.refresh(key)

    def forget(self, key: PoolKey) -> None:
        """Note that the pool is gone."""
        self._statuses.follow(key, ())
        self._silent.pop(key, None)
        self._claims.pop(key, None)
        self._read.pop(key, None)

    def _members(self, of: PoolKey, pool: Pool, versions: Iterable[MemberVersion]) -> dict[Key, Member]:
        """Return the members, each read once for as long as nothing of it changes, and who asks for them now."""
        before, read = self._read.get(of, {}), dict[Key, _Read]()
        for key, version in versions:
            known = before.get(key)
            read[key] = known if known and known.version == version else _Read(version, self._member(pool, key))
        self._read[of] = read
        return {
            key: replace(
                found.member, activity=self._activities.get(key), wanted_ago_s=self._activities.wanted_ago_s(key)
            )
            for key, found in read.items()
        }

    def _member(self, pool: Pool, key: Key) -> Member:
        found = self._cache.member_snapshot(key)
        pods = parse_pods(found.pods).leaders
        on_slots = tuple(pod for pod in pods if pod.pool == pool.key.name and pod.slot)
        try:
            deployment = parse_deployment(found.deployment) if found.deployment else None
        except SpecError:
            deployment = None
        if deployment is None:
            return Member(key=found.key, pods=on_slots, names_pool=False)
        sorted_out = sort_out(deployment, on_slots, self._release.seals, made=found.made)
        named = deployment.placement.pool
        return Member(
            key=found.key,
            deployment=deployment,
            pods=tuple(pod for pod in sorted_out if pod.owner_uid != UNMADE),
            names_pool=named is not None and named.name == pool.key.name,
        )

    async def _ask_all(self, key: PoolKey, pods: Iterable[Pod]) -> tuple[dict[str, Worker], bool]:
        """Return what workers say, by UID of the pod; follow those that are on their way to another state."""
        asked = [pod for pod in pods if pod.ip and pod.container.is_running and not pod.has_ended]
        answers: list[Answer] = await asyncio.gather(*(self._statuses.ask(key, pod) for pod in asked))
        told = {
            pod.uid: answer
            for pod, answer in zip(asked, answers, strict=True)
            if isinstance(answer, Worker) and answer.pod_uid == pod.uid
        }
        moving = [pod.uid for pod in asked if pod.uid not in told or told[pod.uid].state not in _SETTLED]
        return told, self._statuses.follow(key, moving)

    def _note_silent(self, key: PoolKey, pods: Iterable[Pod], now: datetime) -> dict[str, float]:
        """Return for how long each of these gives no answer, as far as we know."""
        known = self._silent.get(key, {})
        since = self._silent[key] = {pod.uid: known.get(pod.uid, now) for pod in pods}
        return {uid: max(_FIRST_SEEN, (now - begin).total_seconds()) for uid, begin in since.items()}

    async def _claims_of(self, key: PoolKey, pool: Pool, pods: Collection[Pod], now: datetime) -> dict[str, SlotClaim]:
        """Return the claims of the slots: anew where nothing keeps them as they were, or a pod waits for one."""
        before = self._claims.get(key)
        allocated = before.allocated if before and before.uid == pool.uid else {}
        known = {name: kept for name, kept in allocated.items() if _still_holds(name, *kept, pods=pods, now=now)}
        names = dict.fromkeys((*pool.slot_names, *(slot.name for slot in pool.slots)))
        missing = [name for name in names if name not in known]
        found = await (self._reservations if pool.device.reservation else self._read_claims)(pool, missing, pods)
        read = {name: (claim, now) for name, claim in found.items()}
        stable = {name: (claim, at) for name, (claim, at) in read.items() if claim.devices and not claim.is_deleting}
        self._claims[key] = _Claims(pool.uid, {**known, **stable})
        return {name: claim for name, (claim, _) in {**known, **read}.items()}

    async def _reservations(self, pool: Pool, names: Collection[str], pods: Collection[Pod]) -> dict[str, SlotClaim]:
        """Return what pods reserve for slots. They are listed, as operators may list pods and not get them."""
        if not names:
            return {}
        selector = reservation_selector(pool.key.name)
        found = await self._kube.list(PODS, pool.key.namespace, label_selector=selector)
        known = {raw["metadata"]["name"]: raw for raw in found.items}
        raws = {name: known.get(reservation_name(name)) for name in names}
        return {name: _reservation(raw, pool, name, pods) if raw else SlotClaim() for name, raw in raws.items()}

    async def _read_claims(self, pool: Pool, names: Collection[str], _: Collection[Pod]) -> dict[str, SlotClaim]:
        """Return the claims of slots, without those of which it cannot be told whether there is one."""
        found = await asyncio.gather(*(self._claim(pool, name) for name in names))
        return {name: claim for name, claim in zip(names, found, strict=True) if claim}

    async def _claim(self, pool: Pool, name: str) -> SlotClaim | None:
        """Return a claim, None where it cannot be told whether there is one."""
        try:
            raw = await self._kube.get(RESOURCE_CLAIMS, pool.key.namespace, name)
        except Forbidden:
            return None
        if raw is None:
            return SlotClaim()
        metadata = raw["metadata"]
        return SlotClaim(
            uid=metadata["uid"],
            is_ours=any(owner["uid"] == pool.uid for owner in metadata.get("ownerReferences") or ()),
            is_deleting="deletionTimestamp" in metadata,
            devices=parse_devices(raw),
            reserved_for=parse_consumers(raw),
        )


def _reservation(raw: Resource, pool: Pool, name: str, pods: Iterable[Pod]) -> SlotClaim:
    """Return the devices of the pod that reserves them for a slot, and which members' pods see these."""
    metadata, told = raw["metadata"], parse_reservation(raw)
    beside = (pod.uid for pod in pods if pod.slot == name and (pod.node, pod.reserved_devices) == told[:2])
    return SlotClaim(
        uid=metadata["uid"],
        is_ours=any(owner["uid"] == pool.uid for owner in metadata.get("ownerReferences") or ()),
        is_deleting="deletionTimestamp" in metadata,
        devices=told.devices,
        reserved_for=frozenset(beside),
        node=told.node,
        complaint=told.complaint,
        has_ended=(raw.get("status") or {}).get("phase") in {"Failed", "Succeeded"},
    )


def _still_holds(name: str, claim: SlotClaim, at: datetime, *, pods: Iterable[Pod], now: datetime) -> bool:
    """Return whether a claim is as it was read: pods keep it, all that are there were known then, and not long ago."""
    here = [pod for pod in pods if pod.slot == name]
    is_waited_for = any(not pod.is_scheduled or pod.has_tainted_device for pod in here)
    staying = {pod.uid for pod in here if pod.is_scheduled and not pod.is_deleting}
    return bool(staying) and staying <= claim.reserved_for and not is_waited_for and now - at < _CLAIM_HOLDS
