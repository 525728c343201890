"""What a pool lets each replica of a member do, and what is told of those it lets do nothing. Pure.

    on no slot's record, or leaving       it rests: the pool alone puts it to sleep, wakes it and shuts its gate
    given a slot, and not there yet       it rises: the pool wakes it; its cache is allocated as after any start
    holder of a slot                      it serves: its gate is opened, as that of any other

A pod of another pool than the one that is known is left as it is: that one decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from dormouse_operator.model import AWAKE, Deployment, Pod, Worker
from dormouse_operator.model.pools import Pool, Refusal, Replica, SlotPhase
from dormouse_operator.model.units import in_gib

POOL_NOT_FOUND, WAITS_FOR_SLOT, SLOT_TOO_SMALL, ASLEEP = "PoolNotFound", "WaitsForSlot", "SlotTooSmall", "Asleep"
_TELLING_REFUSALS = 2  # in a row: one may have met a neighbour that had not gone yet


class Stance(StrEnum):
    """What a pool lets a replica do."""

    RESTS = "Rests"
    RISES = "Rises"
    SERVES = "Serves"


class Rest(NamedTuple):
    """Why a member has nothing awake, and whether somebody has to act."""

    reason: str
    message: str
    is_failure: bool = False


def stance_of(deployment: Deployment, pool: Pool | None, pod: Pod, worker: Worker | None) -> Stance | None:
    """Return what its pool lets a pod do, None where it is in none."""
    if not pod.pool:
        return None
    if pool is None or pool.key.name != pod.pool:
        return Stance.SERVES if worker and worker.state in AWAKE else Stance.RESTS
    replica = Replica(deployment.key, pod.index)
    slot = next((slot for slot in pool.slots if slot.name == pod.slot), None)
    if slot is None or replica not in slot.may_hold or replica == slot.leaving:
        return Stance.RESTS
    return Stance.RISES if replica == slot.next else Stance.SERVES


def is_released(deployment: Deployment, pool: Pool | None) -> bool:
    """Return whether its pool has given its GPUs back, so that a member has no pod until somebody calls."""
    return pool is not None and pool.is_released and deployment.placement.pool is not None


def is_stranded(pool: Pool | None, pod: Pod, worker: Worker | None) -> bool:
    """Return whether a pod is where nobody can wake it: its pool is gone, or goes, or was made anew without its slot.

    Of a pool that is gone who is awake stays, and who does not answer may be.
    """
    if not pod.pool:
        return False
    if pool is not None and not pool.is_deleting:
        return pool.key.name == pod.pool and pod.slot not in {*pool.slot_names, *(slot.name for slot in pool.slots)}
    return not pod.container.is_running or (worker is not None and worker.state not in AWAKE)


def resting(
    deployment: Deployment, pool: Pool | None, pods: Iterable[Pod], workers: Mapping[str, Worker]
) -> frozenset[str]:
    """Return the names of the pods that their pool lets do nothing."""
    stances = ((pod, stance_of(deployment, pool, pod, workers.get(pod.name))) for pod in pods)
    return frozenset(pod.name for pod, stance in stances if stance is Stance.RESTS)


def rest_of(deployment: Deployment, pool: Pool | None) -> Rest:
    """Return why a member that has nothing awake has nothing awake."""
    member = deployment.placement.pool
    assert member, "asked of members only"
    if pool is None:
        where = f"the namespace {deployment.key.namespace}"
        words = f"spec.gpu.pool.name is {member.name!r}; there is no GpuPool of that name in {where}"
        return Rest(POOL_NOT_FOUND, words, is_failure=True)
    refusals = [refusal for slot in pool.slots for refusal in slot.refusals if refusal.replica.key == deployment.key]
    if refused := next((found for found in refusals if _tells(found)), None):
        words = f"{refused.replica} does not fit: {in_gib(refused.missing_bytes)} are missing"
        return Rest(
            SLOT_TOO_SMALL, f"pool {member.name}: {words} on its slot, after {refused.times} tries", is_failure=True
        )
    if deployment.key.name in pool.waiting:
        return Rest(WAITS_FOR_SLOT, f"waits for a slot of pool {member.name}: {_held_by(pool)}")
    return Rest(ASLEEP, f"pool {member.name} has it asleep; a request wakes it")


def _tells(refusal: Refusal) -> bool:
    return refusal.missing_bytes > 0 and refusal.times >= _TELLING_REFUSALS


def _held_by(pool: Pool) -> str:
    """Return who has the slots, the first few by name."""
    held = [f"{slot.name} by {', '.join(map(str, slot.may_hold))}" for slot in pool.slots if slot.may_hold]
    fouled = sum(slot.phase is SlotPhase.FOULED for slot in pool.slots)
    shown = "; ".join(held[:3]) + (f"; and {len(held) - 3} more" if len(held) > 3 else "")
    facts = [f"held are {shown}" if held else "none is held", f"{fouled} fouled" if fouled else ""]
    return ", ".join(fact for fact in facts if fact)
