"""Which ResourceClaims, or pods that reserve, a pool lacks, and which it has no slot for any more. Pure.

A claim is made with its slot and goes with it, once no pod is there. Nobody else's claim is touched: pods on a slot of
that name say what they wait for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dormouse_operator.model.pool_observed import PoolObserved, SlotClaim
from dormouse_operator.model.pools import Slot, SlotPhase


class Claim(NamedTuple):
    """A claim that is there, or a pod that reserves the devices of a slot, and whether members' pods are there too."""

    name: str
    uid: str
    has_pods: bool = True


def missing(observed: PoolObserved) -> list[str]:
    """Return the claims to make."""
    if observed.pool.is_deleting or _gives_back(observed):
        return []
    gone = (name for name in observed.pool.slot_names if observed.claims.get(name) == SlotClaim())
    return [name for name in gone if not observed.robbed_pod(name)]  # its pods would count as those of the next one


def spoiled(observed: PoolObserved) -> list[Claim]:
    """Return the claims to delete because a device of theirs is tainted, or was taken from its pods by force.

    Kubernetes keeps a claim's devices for as long as a pod has it, and members' pods come one after the other. A claim
    that is being deleted takes no new pod: holders and sleepers go, and the next claim gets another device.
    """
    named = {pod.slot for member in observed.members.values() for pod in member.pods if pod.has_tainted_device}
    taken = {name for name in observed.pool.slot_names if observed.robbed_pod(name) or _has_ended(observed, name)}
    known = ((name, observed.claims.get(name, SlotClaim())) for name in sorted(named | taken))
    return [Claim(name, claim.uid) for name, claim in known if claim.is_ours and not claim.is_deleting]


def surplus(observed: PoolObserved, slots: Iterable[Slot]) -> list[Claim]:
    """Return the claims to delete, of the slots as they are to be recorded."""
    leftover = ((slot.name, observed.claims[slot.name]) for slot in slots if is_leftover(observed, slot))
    return [Claim(name, claim.uid, has_pods=False) for name, claim in leftover if not claim.is_deleting]


def is_leftover(observed: PoolObserved, slot: Slot) -> bool:
    """Return whether nothing but its claim is left of a slot that is not wanted."""
    claim = observed.claims.get(slot.name, SlotClaim())
    is_empty = slot.phase is SlotPhase.FREE and not observed.num_pods_on(slot.name)
    return claim.is_ours and is_empty and (slot.name not in observed.pool.slot_names or _gives_back(observed))


def is_awaited(observed: PoolObserved) -> bool:
    """Return whether a pod is to tell devices soon: members have no pods without, so that nothing else tells of it."""
    return any(claim.complaint or claim == SlotClaim() for claim in _reservations(observed))


def _reservations(observed: PoolObserved) -> list[SlotClaim]:
    return list(observed.claims.values()) if observed.pool.device.reservation and not observed.pool.is_released else []


def _gives_back(observed: PoolObserved) -> bool:
    """Return whether nobody is to hold devices: a claim without pods has none, a pod that reserves has."""
    return observed.pool.device.reservation is not None and observed.pool.is_released


def _has_ended(observed: PoolObserved, slot: str) -> bool:
    return observed.claims.get(slot, SlotClaim()).has_ended
