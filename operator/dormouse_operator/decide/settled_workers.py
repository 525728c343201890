"""Which workers are at rest, and what is known of them without asking. Pure.

A worker at rest serves with the agreed count, as recorded, and is to go on serving. Its kubelet probes it; when that
fails, or a new pod takes the name, the pod is no longer ready and the worker is asked again. So no connection is made
to deployments where nothing happens.
"""

from __future__ import annotations

from dormouse_operator.decide.adapter_sets import set_of
from dormouse_operator.model import Deployment, KvCache, Pod, Report, Worker, WorkerState, follower_name


def worker_at_rest(deployment: Deployment, pod: Pod) -> Worker | None:
    """Return the worker as recorded if it is at rest, else None."""
    recorded = deployment.recorded
    if recorded.adapter_set != set_of(deployment):  # it has to hear of adapters, or loads some
        return None
    rank, cache = recorded.rank_of(pod.name), recorded.kv_cache
    if deployment.lifecycle.desired_state not in {"Auto", "Active"} or not (pod.is_ready and pod.gate_open):
        return None
    if _began_anew(pod):
        return None
    if rank is None or cache is None or not cache.is_agreed or rank.allocated_gpu_blocks != cache.num_gpu_blocks:
        return None
    reports = _reports_of(cache, pod)
    if len(reports) != pod.num_ranks:
        return None
    return Worker(
        state=WorkerState.READY,
        pod_uid=pod.uid,
        settings_digest=pod.revision,
        report=reports[0],
        rank_reports=reports if pod.num_ranks > 1 else (),
        num_gpu_blocks=rank.allocated_gpu_blocks,
        num_cpu_blocks=cache.num_cpu_blocks,
        adapters_digest=recorded.adapter_set,
        sleep_levels=rank.sleep_levels,
        is_at_rest=True,
    )


def _began_anew(pod: Pod) -> bool:
    """Return whether its container started after its gate was opened: one that was parked is in STANDBY, and ready."""
    return bool(pod.container.started and pod.gate_since and pod.container.started > pod.gate_since)


def _reports_of(cache: KvCache, leader: Pod) -> tuple[Report, ...]:
    """Return what the ranks of a replica reported, as recorded."""
    names = {leader.name, *(follower_name(leader.name, ordinal) for ordinal in range(1, leader.group_size))}
    return tuple(
        Report(
            rank=rank.rank,
            num_gpu_blocks=rank.num_gpu_blocks,
            num_cpu_blocks=rank.num_cpu_blocks,
            block_size=cache.block_size,
            device=rank.gpu_uuid or "cpu",
            limited_by=rank.limited_by,
            has_cache=cache.num_gpu_blocks > 0,
        )
        for rank in cache.ranks
        if rank.pod in names
    )
