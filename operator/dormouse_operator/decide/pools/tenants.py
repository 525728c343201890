"""Who is on each slot and what it does there, from pods and their workers' words. Pure.

What makes it hard: a pod whose worker does not answer may still have everything. Only a pod without a running container
has nothing; one that is being deleted is asked as any other, for it holds its memory until it ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_operator.decide.pools.budget import is_oversized
from dormouse_operator.model import Pod, Worker, WorkerState
from dormouse_operator.model.pool_observed import Member, PoolObserved
from dormouse_operator.model.pools import TAKES_MEMORY, Replica, Tenant, TenantState

_STATES: Mapping[WorkerState, TenantState] = {
    WorkerState.STANDBY: TenantState.STANDBY,
    WorkerState.ASLEEP: TenantState.ASLEEP,
    WorkerState.READY: TenantState.SERVING,
    WorkerState.DRAINING: TenantState.DRAINING,
    WorkerState.FAILED: TenantState.FAILED,
}


def tenants_on(observed: PoolObserved, slot: str) -> dict[Replica, Tenant]:
    """Return the replicas that have a pod on a slot; where one has two, the pod that may hold more counts."""
    found: dict[Replica, Tenant] = {}
    for member, pod in observed.pods_on(slot):
        tenant = tenant_of(observed, member, pod)
        known = found.get(tenant.replica)
        if known is None or _weight(tenant) > _weight(known):
            found[tenant.replica] = tenant
    return found


def tenant_of(observed: PoolObserved, member: Member, pod: Pod) -> Tenant:
    """Return what a pod is to its slot."""
    replica = Replica(member.key, pod.index)
    state = _state(observed, pod)
    worker = observed.answers.get(pod.uid) or _UNHEARD
    grant = worker.grant if worker.grant and worker.grant.slot == pod.slot else None
    deployment = member.deployment
    return Tenant(
        replica=replica,
        state=state,
        instance=worker.instance,
        gate_open=pod.gate_open,
        running_requests=worker.running_requests,
        request_counter=worker.request_counter,
        residual_bytes=worker.residual_bytes,
        grant_epoch=grant.slot_epoch if grant else 0,
        refused_epoch=max(worker.refused_slot_epoch, observed.refused.get(replica, 0)),
        missing_bytes=worker.missing_bytes,
        engine_failed=worker.engine_failed,
        is_oversized=grant is not None and deployment is not None and is_oversized(observed, grant, deployment),
        silent_s=observed.silent_s.get(pod.uid, 0.0) if state is TenantState.SILENT else 0.0,
        is_deleting=pod.is_deleting,
        has_lost_node=pod.has_lost_node,
        is_short=pod.memory.is_short,
    )


_UNHEARD = Worker(state=WorkerState.STARTING, pod_uid="", settings_digest="")


def _state(observed: PoolObserved, pod: Pod) -> TenantState:
    if pod.has_ended or not (pod.ip and pod.container.is_running):
        return TenantState.SILENT if pod.has_lost_node else TenantState.ABSENT
    worker = observed.answers.get(pod.uid)
    if worker is None:
        return TenantState.SILENT
    return _STATES.get(worker.state, TenantState.RISING)


def _weight(tenant: Tenant) -> int:
    """Return how much of the device a pod may have, for comparison."""
    if tenant.state in TAKES_MEMORY or tenant.state is TenantState.SILENT:
        return 3
    return {TenantState.ASLEEP: 2, TenantState.STANDBY: 1}.get(tenant.state, 0)
