"""What a replica is granted: which devices, and how much of each it may take while it is awake. Pure.

    budget = (total × utilization − what sleepers may leave) / awake at a time
    what sleepers may leave = reserve × places + what any of them leaves beyond its reserve

The total is what workers on the slot measured; before any has, the least of what others of the pool measured, or had
when the status was written: their pods may be gone. The very first one is told what is kept for sleepers, and reckons
the same once it has measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from dormouse_operator.model import Deployment, DeviceGrant, Worker
from dormouse_operator.model.pool_observed import PoolObserved
from dormouse_operator.model.pools import Slot
from dormouse_operator.model.units import ROUND, in_gib

UTILIZATION = 0.9  # where the spec names none, as workers have it
_LEAST_BYTES = 1  # 0 would be no bound at all


def grant_of(observed: PoolObserved, slot: Slot, deployment: Deployment) -> DeviceGrant:
    """Return the grant of a slot, for a replica of this deployment: the devices are as its claim tells them."""
    claim = observed.claims.get(slot.name)
    return DeviceGrant(
        slot=slot.name,
        slot_epoch=slot.epoch,
        budget_bytes=budget_bytes(observed, slot, deployment),
        device=",".join(claim.devices) if claim else "",
        reserved_bytes=_reserved_bytes(observed, slot),
        awake_per_slot=observed.pool.policy.awake_per_slot,
    )


def budget_bytes(observed: PoolObserved, slot: Slot, deployment: Deployment) -> int:
    """Return the bound in bytes, 0 for none."""
    total = _total_bytes(observed.answers_on(slot.name)) or device_bytes(observed)
    if not total:
        return 0
    policy, utilization = observed.pool.policy, deployment.engine.gpu_memory_utilization or UTILIZATION
    left = int(total * utilization) - _reserved_bytes(observed, slot)
    return max(_LEAST_BYTES, left // policy.awake_per_slot)


def is_oversized(observed: PoolObserved, grant: DeviceGrant, deployment: Deployment) -> bool:
    """Return whether an engine that was started under a grant may take more than one of now could."""
    slot = observed.recorded(grant.slot)
    most = budget_bytes(observed, slot, deployment) if slot else 0
    if slot is None or not most:
        return False
    if grant.budget_bytes or not grant.reserved_bytes:  # none at all: a worker of a release before reserves
        return not 0 < grant.budget_bytes <= most
    reserved, awake = _reserved_bytes(observed, slot), observed.pool.policy.awake_per_slot
    return grant.reserved_bytes < reserved or grant.awake_per_slot < awake


def _reserved_bytes(observed: PoolObserved, slot: Slot) -> int:
    """Return what sleepers may leave on a slot's device."""
    policy = observed.pool.policy
    beyond = sum(max(0, sleeper.residual_bytes - policy.sleeper_reserve_bytes) for sleeper in slot.sleepers)
    return policy.residue_limit_bytes + beyond


def device_bytes(observed: PoolObserved) -> int:
    """Return the memory of the smallest device of the pool: as measured now, else as recorded; 0 = nobody knows."""
    return _total_bytes(observed.answers.values()) or observed.pool.device_bytes


def _total_bytes(workers: Iterable[Worker]) -> int:
    """Return the memory of the smallest device that any of them has measured, 0 for none."""
    measured = (worker.report.total_bytes for worker in workers if worker.report)
    return min((total for total in measured if total), default=0)


def reserve_complaint(observed: PoolObserved) -> str:
    """Return why nothing is left for who is awake, with the numbers; "" where something is, or nothing is measured."""
    policy, total = observed.pool.policy, _total_bytes(observed.answers.values())
    kept, most = policy.residue_limit_bytes, int(total * UTILIZATION)
    if not total or kept < most:
        return ""
    each, product, device, usable = (
        in_gib(num_bytes, ROUND) for num_bytes in (policy.sleeper_reserve_bytes, kept, total, most)
    )
    rule = f"spec.maxMembersPerSlot {policy.max_members_per_slot} x spec.sleeperReserve {each} = {product}"
    words = f"{rule} are kept for sleepers, and of a device with {device} {usable} can be used"
    return f"{words}: lower one of the two"
