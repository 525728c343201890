"""Whose residue on a device has to go: sleepers go to STANDBY, the least valuable first. Pure.

    value = seconds that its wake takes longer from there × how recently it was called = wake_s / quiet_s

as with copies in host memory (`pressure`). A sleeper whose demand is not known is worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from dormouse_operator.model.pools import Demand, Demands, PoolPolicy, Replica, Slot, Tenant, TenantState


def value(demand: Demand | None, replica: Replica) -> float:
    """Return what it is worth that a replica wakes as fast as now; more is worth more."""
    wakes_s = [place.wake_s for place in demand.places if place.replica == replica] if demand else []
    return max(wakes_s) / max(1.0, demand.quiet_s) if demand and wakes_s else 0.0


def deepenings(tenants: Iterable[Tenant], demands: Demands, *, to_free_bytes: int) -> tuple[Replica, ...]:
    """Return who goes to STANDBY so that so many bytes are free; all that leave any, if that is not enough."""
    asleep = (tenant for tenant in tenants if tenant.state is TenantState.ASLEEP and tenant.residual_bytes)
    gone: list[Replica] = []
    missing = to_free_bytes
    for tenant in sorted(
        asleep, key=lambda tenant: (value(demands.get(tenant.replica.key), tenant.replica), tenant.replica)
    ):
        if missing <= 0:
            break
        gone.append(tenant.replica)
        missing -= tenant.residual_bytes
    return tuple(gone)


def crowding(slot: Slot, demands: Demands, policy: PoolPolicy) -> tuple[Replica, ...]:
    """Return who goes to STANDBY so that all residues on a slot keep within what is set aside for them."""
    tenants = [
        Tenant(replica=sleeper.replica, state=TenantState.ASLEEP, residual_bytes=sleeper.residual_bytes)
        for sleeper in slot.sleepers
        if sleeper.replica not in {*slot.may_hold, slot.next}
    ]
    over_bytes = sum(tenant.residual_bytes for tenant in tenants) - policy.residue_limit_bytes
    return deepenings(tenants, demands, to_free_bytes=over_bytes)
