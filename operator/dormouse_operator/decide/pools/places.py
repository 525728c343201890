"""Which slot a replica of a pool's member gets for life. Pure, stores nothing: who is where, the pods say.

    it has a pod on a slot still  → that one
    else, of the slots that are wanted, have room, and have no other replica of the member: the one with the fewest

Whoever comes or goes moves nobody: a replica is placed when its pod is made, and beside those that have theirs. Two
replicas of one member on one slot would take turns with each other, which serves nobody more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dormouse_operator.model.pools import Pool, Replica

Placed = Mapping[Replica, str]  # the slot of each replica that has a pod, also of one that is being deleted


def choose_slot(pool: Pool, replica: Replica, placed: Placed) -> str | None:
    """Return the slot for a pod of the replica, None where none is to be had. `placed` are those of all members."""
    if placed.get(replica) in pool.open_slots:
        return placed[replica]
    counts = Counter(placed.values())
    free = [slot for slot in pool.open_slots if slot not in _own(replica, placed) and _has_room(pool, counts, slot)]
    return min(free, key=lambda slot: counts[slot], default=None)


def no_place(pool: Pool, replica: Replica, placed: Placed) -> str:
    """Return in a sentence why a replica gets no slot, with the numbers."""
    counts, own = Counter(placed.values()), _own(replica, placed)
    unknown = len(pool.slot_names) - len(pool.open_slots)
    full = sum(not _has_room(pool, counts, slot) for slot in pool.slot_names if slot not in own)
    taken = sum(slot in own for slot in pool.slot_names)
    most = pool.policy.max_members_per_slot
    facts = [f"{full} have spec.maxMembersPerSlot, {most}, replicas" if full else ""]
    facts += [f"{taken} have another replica of this member" if taken else ""]
    facts += [f"{unknown} have no devices yet: see the pool's condition Allocated" if unknown else ""]
    why = " and ".join(fact for fact in facts if fact)
    words = f"replica {replica.index} has no place in GpuPool {pool.key.name}: of its {pool.num_slots} slots {why}"
    return (
        f"{words}; raise spec.slots{' or spec.maxMembersPerSlot' if full else ''} of the pool, or lower spec.replicas"
    )


def _own(replica: Replica, placed: Placed) -> set[str]:
    """Return the slots of the member's other replicas."""
    return {slot for other, slot in placed.items() if other.key == replica.key and other != replica}


def _has_room(pool: Pool, counts: Mapping[str, int], slot: str) -> bool:
    return counts.get(slot, 0) < pool.policy.max_members_per_slot
