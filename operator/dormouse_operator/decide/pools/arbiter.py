"""Who is given a slot of a pool, who has to leave one, and who sleeps deeper. Pure, stores nothing.

    for each waiter, first the one whose turn it is, on any of its slots where nothing is under way:
        room on a slot            → it is given that, where it wakes soonest
        an idle holder            → the least valuable leaves
        a busy one past its turn  → the one that could have left first leaves
        else                      → nothing; who comes after it is not held up

What makes it hard: (1) a switch costs both models their time, so nothing moves without somebody who waits for it.
(2) a replica is bound to its slot, so the first in line may have to wait where the second does not. (3) two decisions
of one pass must not contradict: each is made on the slots as the ones before have changed them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from dormouse_operator.decide.pools.deepening import crowding, value
from dormouse_operator.decide.pools.transitions import begin_yield, grant
from dormouse_operator.decide.pools.waiting import Waiter, backing_off, waiters
from dormouse_operator.decide.pools.yielding import Scene, is_spare, leaves_at
from dormouse_operator.model.pools import Demands, Holding, Place, PoolPolicy, Replica, Slot
from dormouse_operator.model.wanted import Key


@dataclass(frozen=True, slots=True)
class Grant:
    """A replica is given room on its slot."""

    slot: str
    replica: Replica


@dataclass(frozen=True, slots=True)
class Yield:
    """A holder leaves its slot for another replica."""

    slot: str
    leaving: Replica
    next: Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What changes in a pool now, and when time alone may change more (None: never)."""

    grants: tuple[Grant, ...] = ()
    yields: tuple[Yield, ...] = ()
    deepenings: tuple[Replica, ...] = ()  # go to STANDBY: residues on their slot take too much
    starving: tuple[Key, ...] = ()  # have nothing awake, and have waited too long for it
    due: datetime | None = None

    def apply_to(self, slots: Collection[Slot], now: datetime) -> dict[str, Slot]:
        """Return the slots that have to be written, by name."""
        by_name = {slot.name: slot for slot in slots}
        moves: tuple[Grant | Yield, ...] = (*self.grants, *self.yields)
        return {move.slot: _moved(by_name[move.slot], move, now) for move in moves}


def decide(
    slots: Collection[Slot], demands: Demands, policy: PoolPolicy, now: datetime, *, gateways_heard: bool = True
) -> Decision:
    """Return what changes now. Every replica's slot is in `slots`, or the replica is not woken."""
    scene = Scene.of(slots, demands, policy, now, gateways_heard=gateways_heard)
    in_line = waiters(slots, demands, policy, now)
    moves: list[Grant | Yield] = []
    dues = list(backing_off(slots, policy, now).values())
    for waiter in in_line:
        found = _move(scene, waiter)
        if isinstance(found, Grant | Yield):
            moves.append(found)
            scene = _after(scene, found)
        else:
            dues += [*([found] if found else []), *_begins_to_starve(scene, waiter)]
    return Decision(
        grants=tuple(move for move in moves if isinstance(move, Grant)),
        yields=tuple(move for move in moves if isinstance(move, Yield)),
        deepenings=tuple(replica for slot in scene.slots.values() for replica in crowding(slot, demands, policy)),
        starving=tuple(waiter.demand.key for waiter in in_line if _is_starving(waiter, policy)),
        due=min(dues, default=None),
    )


def _is_starving(waiter: Waiter, policy: PoolPolicy) -> bool:
    return waiter.num_awake == 0 and waiter.waited_s >= policy.starving_s


def _begins_to_starve(scene: Scene, waiter: Waiter) -> list[datetime]:
    """Return when a member will have waited too long, if nothing moves until then."""
    left_s = scene.policy.starving_s - waiter.waited_s
    return [scene.now + timedelta(seconds=left_s)] if waiter.num_awake == 0 and left_s > 0 else []


def _after(scene: Scene, move: Grant | Yield) -> Scene:
    """Return the pool as it is once a move was written."""
    return scene.with_slot(_moved(scene.slots[move.slot], move, scene.now))


def _moved(slot: Slot, move: Grant | Yield, now: datetime) -> Slot:
    if isinstance(move, Grant):
        return grant(slot, move.replica, now)
    return begin_yield(slot, move.leaving, move.next, now)


def _move(scene: Scene, waiter: Waiter) -> Grant | Yield | datetime | None:
    """Return what brings a waiter onto a slot, or when that may be; None if time alone does not help."""
    open_places = [place for place in waiter.places if _is_open(scene, place)]
    rooms = [place for place in open_places if _has_room(scene, place)]
    if rooms:
        best = min(rooms, key=lambda place: (place.wake_s, place.slot))
        return Grant(best.slot, best.replica)
    first = min(_exits(scene, waiter, open_places), default=None)
    if first is None:
        return None
    return Yield(first.place.slot, first.leaving, first.place.replica) if first.at <= scene.now else first.at


def _is_open(scene: Scene, place: Place) -> bool:
    """Return whether nothing is under way on the slot of a place."""
    slot = scene.slots.get(place.slot)
    return slot is not None and slot.is_settled


def _has_room(scene: Scene, place: Place) -> bool:
    return len(scene.slots[place.slot].holders) < scene.policy.awake_per_slot


class _Exit(NamedTuple):
    """A holder that may leave for a waiter. The least is best: who may now, the idle first, the overdue, the cheap."""

    at: datetime
    is_busy: bool
    could_leave: datetime
    value: float
    place: Place
    leaving: Replica


def _exits(scene: Scene, waiter: Waiter, places: list[Place]) -> Iterator[_Exit]:
    """Return the holders that may leave for a waiter some time."""
    for place in places:
        for holding in scene.slots[place.slot].holders:
            could_leave = leaves_at(scene, holding, waiter, place)
            if could_leave is not None:
                yield _exit(scene, place, holding, could_leave)


def _exit(scene: Scene, place: Place, holding: Holding, could_leave: datetime) -> _Exit:
    demand = scene.demands.get(holding.replica.key)
    is_busy = demand is not None and not is_spare(scene, demand)
    worth = value(demand, holding.replica)
    return _Exit(max(scene.now, could_leave), is_busy, could_leave, worth, place, holding.replica)
