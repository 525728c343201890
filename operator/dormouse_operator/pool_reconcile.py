"""The conductor of one pass over one pool: observe → plan → publish → begin orders.

The status is written before any order that follows from it, of the very version that was observed: of two operators
one meets a conflict and begins nothing. Orders run on beside the passes; each ends with another pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dormouse_api.names import POOL_KIND
from dormouse_kube.api import GPU_POOLS
from dormouse_kube.errors import Conflict, NotFound
from dormouse_operator.act.event_recorder import record_event
from dormouse_operator.act.pool_effects import Order
from dormouse_operator.act.pool_orders import PoolOrders
from dormouse_operator.act.slot_devices import SlotDevices
from dormouse_operator.act.writes import Writer
from dormouse_operator.decide.pools import claims
from dormouse_operator.decide.pools.budget import grant_of
from dormouse_operator.decide.pools.commands import GrantDevice, PodCommand, following
from dormouse_operator.decide.pools.conditions import evaluate_all
from dormouse_operator.decide.pools.events import events
from dormouse_operator.decide.pools.plan import PoolPlan, plan_pool
from dormouse_operator.decide.pools.status import build_status, devices_of
from dormouse_operator.decide.pools.tenants import tenant_of
from dormouse_operator.decide.status import status_patch
from dormouse_operator.model import Key, PoolKey
from dormouse_operator.model.pool_observed import PoolObserved
from dormouse_operator.model.pools import Replica, Slot, Tenant
from dormouse_operator.observe.pool_observer import PoolObserver
from dormouse_operator.parse import SpecError
from dormouse_operator.pool_metrics import PoolMetrics
from dormouse_operator.reconcile import Leader

_LOG = logging.getLogger(__name__)

_STALE_S = 0.5  # what was written to is newer than what was observed
_POLL_S = 0.5  # where workers do not tell by themselves
_LOOK_S = 15.0  # at the latest, in case something was not told


@dataclass(slots=True)
class _Seen:
    """What a pool was like when its members were told last: a write may be done, and its answer be lost."""

    version: int
    generation: int = 0
    members: frozenset[Key] = frozenset()
    slots: Mapping[str, Slot] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    is_released: bool = False
    tenants: Mapping[str, Mapping[Replica, Tenant]] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by slot


class PoolReconciler:
    """Runs passes over pools. What it keeps in memory can be lost."""

    def __init__(  # noqa: PLR0913  # the stages, and what goes into what they write
        self,
        writer: Writer,
        observer: PoolObserver,
        orders: PoolOrders,
        *,
        devices: SlotDevices,
        leader: Leader,
        metrics: PoolMetrics,
        mark: Callable[[Key], None],
        reporter: str = "",
    ) -> None:
        """Take the stages; `mark` hears of members that have to be looked at, `reporter` writes the Events."""
        self._writer = writer
        self._observer = observer
        self._orders = orders
        self._devices = devices
        self._leader = leader
        self._metrics = metrics
        self._mark = mark
        self._reporter = reporter
        self._seen: dict[PoolKey, _Seen] = {}

    def __repr__(self) -> str:
        """Show how many pools it has seen."""
        return f"PoolReconciler({len(self._seen)} pools, {self._orders!r})"

    @property
    def seen(self) -> Mapping[PoolKey, int]:
        """Return the version of the cache that the last pass over each pool saw."""
        return {key: seen.version for key, seen in self._seen.items()}

    async def reconcile(self, key: PoolKey) -> float | None:
        """Make one pass; return after how many seconds to make the next. Raises KubeError, NotLeading."""
        snapshot = self._observer.look(key)
        if snapshot is None:
            await self._forget(key)
            return None
        seen = self._seen.setdefault(key, _Seen(snapshot.version))
        seen.version = snapshot.version
        try:
            observation = await self._observer.observe(key, snapshot, self._orders.look(key))
        except SpecError as error:
            _LOG.warning("%s: %s", key, error)
            return None
        observed = observation.observed
        await self._outrank(observed)
        plan = plan_pool(observed)
        orders = list(_orders_of(observed, plan))
        if plan.is_recorded(observed):  # what orders follow from is written already
            self._orders.begin(key, orders)
        if not await self._publish(key, observed, plan, observation.resource_version):
            return _STALE_S
        self._orders.begin(key, orders)
        self._tell_members(seen, observed, plan)  # who looks before it is written reads what was
        await self._tell_people(observed, plan)
        await self._settle_claims(observed, plan)
        return _again_s(observed, plan, is_told=observation.is_told)

    async def stop(self) -> None:
        """Give up what is under way."""
        await self._orders.stop()

    async def _publish(self, key: PoolKey, observed: PoolObserved, plan: PoolPlan, resource_version: str) -> bool:
        """Write the status if it changed; return whether it stands as planned."""
        pool = observed.pool
        self._metrics.show(key, observed, plan)
        patch = status_patch(pool.raw, build_status(observed, plan, evaluate_all(observed, plan)))
        if not patch:
            return True
        try:
            await self._writer.patch_status(GPU_POOLS, *pool.key, patch, resource_version=resource_version)
        except (Conflict, NotFound) as error:
            _LOG.info("%s: changed since it was observed: %s", key, error)
            return False
        self._metrics.count(key, observed, plan)
        return True

    async def _tell_people(self, observed: PoolObserved, plan: PoolPlan) -> None:
        """Write Events of what has changed; nobody waits for them."""
        pool = observed.pool
        for event in events(observed, plan):
            await record_event(
                self._writer,
                event,
                key=pool.key,
                uid=pool.uid,
                now=observed.now,
                reporter=self._reporter,
                kind=POOL_KIND,
            )

    def _tell_members(self, seen: _Seen, observed: PoolObserved, plan: PoolPlan) -> None:
        """Have members looked at whom a change of slots, of their workers or of the wait concerns."""
        concerned = set(_changed_slots(seen.slots, observed, plan)) | set(_changed_tenants(seen.tenants, plan.tenants))
        waiting, members = frozenset(plan.waiting), frozenset(observed.members)
        concerned |= {member for member in members if member.name in seen.waiting ^ waiting}
        is_released = plan.idleness.released_since is not None
        is_turned = seen.is_released != is_released
        devices = {slot.name: devices_of(observed, slot.name) for slot in plan.slots}
        if seen.generation != observed.pool.generation or is_turned or seen.devices != devices:
            concerned |= members
        seen.devices, seen.slots = devices, {slot.name: slot for slot in plan.slots}
        seen.generation, seen.members, seen.tenants = observed.pool.generation, members, plan.tenants
        seen.waiting, seen.is_released = waiting, is_released
        for member in sorted(concerned & members):
            self._observer.refresh(member)
            self._mark(member)

    async def _settle_claims(self, observed: PoolObserved, plan: PoolPlan) -> None:
        """Make the claims that are missing, and delete those whose slot is gone, or whose device is spoiled."""
        pool = observed.pool
        makes = (self._devices.make(pool, name) for name in claims.missing(observed))
        leftover = (*claims.surplus(observed, plan.slots), *claims.spoiled(observed))
        deletes = (self._devices.delete(pool, claim) for claim in leftover)
        for error in await asyncio.gather(*makes, *deletes, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    async def _outrank(self, observed: PoolObserved) -> None:
        """Make sure that no worker has seen a higher epoch than ours."""
        highest = max((worker.epoch for worker in observed.answers.values()), default=0)
        if highest > self._leader.epoch:
            await self._leader.raise_above(highest)

    async def _forget(self, key: PoolKey) -> None:
        """Drop what is kept of a pool that is gone; its members say so."""
        seen = self._seen.pop(key, None)
        await self._orders.stop(key)
        self._observer.forget(key)
        self._metrics.forget(key)
        for member in sorted(seen.members) if seen else ():
            self._mark(member)


def _orders_of(observed: PoolObserved, plan: PoolPlan) -> Iterable[tuple[Replica, Order]]:
    """Yield each command with the pod that it is for."""
    slots = {slot.name: slot for slot in plan.slots}
    for command in plan.commands:
        yield from _order(observed, plan, slots, command)


def _order(
    observed: PoolObserved, plan: PoolPlan, slots: Mapping[str, Slot], command: PodCommand
) -> Iterable[tuple[Replica, Order]]:
    replica = command.replica
    member = observed.members.get(replica.key)
    if member is None:
        return
    for pod in member.pods_of(replica.index):
        known = plan.tenants.get(pod.slot, {}).get(replica)
        if known is None or known != tenant_of(observed, member, pod) or pod.slot not in slots:
            continue
        is_grant = isinstance(command, GrantDevice) and member.deployment is not None
        grant = grant_of(observed, slots[pod.slot], member.deployment) if is_grant and member.deployment else None
        yield (
            replica,
            Order(
                command=command,
                namespace=replica.key.namespace,
                pod=pod,
                grant=grant,
                now=observed.now,
                then=following(command, known),
            ),
        )
        return


def _changed_slots(told: Mapping[str, Slot], observed: PoolObserved, plan: PoolPlan) -> Iterable[Key]:
    """Yield the members whose replicas are, or were, on slots that changed; all that wait read who holds them."""
    for slot in plan.slots:
        before = told.get(slot.name)
        if before is None or before.epoch != slot.epoch:
            replicas = (*slot.may_hold, *(before.may_hold if before else ()))
            yield from (replica.key for replica in replicas)
            yield from (replica.key for replica in (slot.next, slot.leaving) if replica)
            yield from (member for member in observed.members if member.name in plan.waiting)


def _changed_tenants(
    before: Mapping[str, Mapping[Replica, Tenant]], after: Mapping[str, Mapping[Replica, Tenant]]
) -> Iterable[Key]:
    """Yield the members whose workers are in another state than in the last pass."""
    for name, tenants in after.items():
        known = before.get(name, {})
        yield from (replica.key for replica, tenant in tenants.items() if _differs(known.get(replica), tenant))


def _differs(before: Tenant | None, after: Tenant) -> bool:
    return before is None or (before.state, before.grant_epoch) != (after.state, after.grant_epoch)


def _again_s(observed: PoolObserved, plan: PoolPlan, *, is_told: bool) -> float:
    """Return when to look again."""
    moving = any(not slot.is_settled for slot in plan.slots)
    times_s = [_LOOK_S]
    if any(claims.is_leftover(observed, slot) for slot in plan.slots) or claims.is_awaited(observed):
        times_s.append(_POLL_S)  # claims are not watched
    if plan.due:
        times_s.append(max(0.0, (plan.due - observed.now).total_seconds()))
    if moving and not is_told:
        times_s.append(_POLL_S)
    return min(times_s)
