"""Short names for a pool's nouns: a test states what matters to it."""

from __future__ import annotations

from datetime import timedelta

from dormouse_operator.model import Key
from dormouse_operator.model.pools import (
    Demand,
    Holding,
    Place,
    PoolPolicy,
    Refusal,
    Replica,
    Slot,
    SlotPhase,
    Tenant,
    TenantState,
)
from dormouse_operator.testing.nouns import NOW

POLICY = PoolPolicy()


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def later(seconds):
    return NOW + timedelta(seconds=seconds)


def key(name):
    return Key("team", name)


def replica(name, index=0):
    return Replica(key(name), index)


A, B, C = replica("a"), replica("b"), replica("c")


def free(name="s", **fields):
    return Slot(name=name, since=ago(100), **fields)


def held(*holders, name="s", for_s=100, **fields):
    """Return a slot that these hold, by replica."""
    holdings = tuple(Holding(holder, ago(for_s)) for holder in holders)
    return Slot(name=name, since=ago(for_s), phase=SlotPhase.HELD, holders=holdings, **fields)


def granting(to=B, name="s", for_s=0, **fields):
    return Slot(name=name, since=ago(for_s), phase=SlotPhase.GRANTING, next=to, **{"epoch": 7, **fields})


def yielding(leaving=A, to=B, name="s", for_s=0, **fields):
    fields = {"epoch": 7, "holders": (Holding(leaving, ago(100)),), **fields}
    return Slot(name=name, since=ago(for_s), phase=SlotPhase.YIELDING, leaving=leaving, next=to, **fields)


def fouled(*holders, leaving=None, name="s"):
    holdings = tuple(Holding(holder, ago(9)) for holder in holders)
    return Slot(name=name, since=ago(9), phase=SlotPhase.FOULED, holders=holdings, leaving=leaving, epoch=7)


def demand(name, *slots, wanted=1, waited_s=None, wake_s=1.0, sleep_s=0.0, **fields):
    """Return what a member asks for that has a replica on each of these slots (default s)."""
    places = tuple(Place(replica(name, index), slot, wake_s, sleep_s) for index, slot in enumerate(slots or ("s",)))
    since = None if waited_s is None else ago(waited_s)
    return Demand(key=key(name), places=places, wanted=wanted, waiting_since=since, **fields)


def demands(*all_of_them):
    return {found.key: found for found in all_of_them}


def tenant(of, state=TenantState.SERVING, **fields):
    return Tenant(replica=of, state=state, **fields)


def tenants(*all_of_them):
    return {found.replica: found for found in all_of_them}


def refusal(of, *, times=1, ago_s=0, **fields):
    return Refusal(replica=of, times=times, at=ago(ago_s), **{"reason": "WakeFailed", **fields})
