"""When the GPUs of a pool are the cluster's again: nobody has been awake, nor called, for `releaseAfterSeconds`. Pure.

    somebody awake, on the way, or called ──▶ the count begins anew, and members have their pods
    nobody                                ──▶ idle since ──release_after_s──▶ released: members' pods go, and with the
                                              last pod of a slot its claim's allocation

What is written is what members' passes go by. A call ends it whenever it comes: pods that still go are made anew.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from dormouse_operator.model.pools import Demands, Idleness, Pool, Slot, SlotPhase


def idleness_of(
    pool: Pool, slots: Collection[Slot], demands: Demands, now: datetime, *, gateways_heard: bool
) -> Idleness:
    """Return the pool's idleness. `slots` are as they are about to be written.

    While a gateway is not heard nobody is known to be idle, so nothing is released that is not yet.
    """
    is_used = any(slot.phase is not SlotPhase.FREE for slot in slots) or any(not it.is_idle for it in demands.values())
    if not pool.release_after_s or pool.is_deleting or is_used:
        return Idleness()
    since = pool.idleness.since or now
    if now < since + timedelta(seconds=pool.release_after_s):
        return Idleness(since)
    if not (gateways_heard or pool.is_released):
        return Idleness(since)
    return Idleness(since, pool.idleness.released_since or now)


def release_due(pool: Pool, idleness: Idleness, now: datetime) -> datetime | None:
    """Return when time alone releases the pool, None where it does not, or does not any more."""
    due = idleness.since + timedelta(seconds=pool.release_after_s) if idleness.since else now
    return due if due > now else None
