"""Actions on the cluster's objects: each is one idempotent write, or two. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import assert_never

from dormouse_api.names import ANNOTATION_SEAL
from dormouse_kube.api import (
    CLAIMS,
    DAEMON_SETS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    INFERENCE_POOLS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Kind,
)
from dormouse_kube.errors import Conflict
from dormouse_operator.act.places import Places
from dormouse_operator.act.writes import Writer
from dormouse_operator.decide.actions import (
    ApplyDisruptionBudget,
    ApplyInferencePool,
    ApplyNetworkPolicy,
    ApplyPrePull,
    ApplyRanksService,
    ApplyService,
    ClusterAction,
    CreateFollower,
    CreatePod,
    DeleteDisruptionBudget,
    DeleteInferencePool,
    DeleteNetworkPolicy,
    DeletePod,
    DeletePrePull,
    Relabel,
    ResizeMemory,
    SetGate,
)
from dormouse_operator.decide.children import free_name
from dormouse_operator.decide.seals import Seals
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import (
    FIELD_MANAGER,
    GRACE_AFTER_DRAIN_S,
    Manifest,
    WorkerDefaults,
    budget_manifest,
    claim_manifest,
    claim_name,
    gate_manifest,
    in_standby,
    memory_manifest,
    on_slot,
    picker_service_manifest,
    picker_slice_manifest,
    pod_manifest,
    policy_manifest,
    pool_manifest,
    pre_pull_manifest,
    pre_pull_name,
    ranks_service_manifest,
    revision_manifest,
    service_manifest,
)
from dormouse_operator.model import Pod
from dormouse_operator.model.pools import Replica

_REVISION_MANAGER = f"{FIELD_MANAGER}-revision"
_MEMORY_MANAGER = f"{FIELD_MANAGER}-memory"
_DELETED: Mapping[type, tuple[Kind, Callable[[str], str]]] = {  # and what they are called, by their deployment's name
    DeleteDisruptionBudget: (DISRUPTION_BUDGETS, str),
    DeleteNetworkPolicy: (NETWORK_POLICIES, str),
    DeleteInferencePool: (INFERENCE_POOLS, str),
    DeletePrePull: (DAEMON_SETS, pre_pull_name),
}


class ClusterEffects:
    """Writes to the API server. Raises KubeError."""

    def __init__(self, kube: Writer, defaults: WorkerDefaults, places: Places, seals: Seals | None = None) -> None:
        """Take where to write, what every worker pod gets, who knows free slots, and how a pod is known again."""
        self._places = places
        self._kube = kube
        self._seals = seals
        self._defaults = defaults

    async def act(self, situation: Situation, action: ClusterAction) -> None:
        """Carry out one action."""
        deployment = situation.deployment
        match action:
            case ApplyService() | ApplyRanksService() | ApplyDisruptionBudget() | ApplyNetworkPolicy() | ApplyPrePull():
                kind, manifest = _child(situation, action, self._defaults)
                await self._kube.apply(kind, manifest, field_manager=FIELD_MANAGER)
            case DeleteDisruptionBudget(uid) | DeleteNetworkPolicy(uid) | DeleteInferencePool(uid) | DeletePrePull(uid):
                kind, name_of = _DELETED[type(action)]
                await self._kube.delete(kind, deployment.key.namespace, name_of(deployment.key.name), uid=uid)
            case ApplyInferencePool():
                await self._apply_pool(situation)
            case CreatePod():
                await self._create_pod(situation, action)
            case CreateFollower(leader, ordinal):
                await self._create_follower(situation, leader, ordinal)
            case DeletePod(pod):
                await self._kube.delete(PODS, deployment.key.namespace, pod.name, uid=pod.uid)
            case Relabel(pod, revision):
                label = revision_manifest(deployment, pod, revision)
                await self._kube.apply(PODS, label, field_manager=_REVISION_MANAGER)
            case ResizeMemory(pod, num_bytes):
                asked = memory_manifest(deployment.key.namespace, pod, num_bytes)
                await self._kube.apply(PODS, asked, field_manager=_MEMORY_MANAGER, subresource="resize")
            case SetGate(pod, is_open, reason):
                gate = gate_manifest(deployment.key.namespace, pod, is_open=is_open, reason=reason, now=situation.now)
                await self._kube.apply(PODS, gate, field_manager=FIELD_MANAGER, subresource="status")
            case _:
                assert_never(action)

    async def _apply_pool(self, situation: Situation) -> None:
        """Make the way to the picker, then the pool that names it."""
        deployment, picker = situation.deployment, situation.release.picker
        assert picker, "planned only with a picker"
        if service := picker_service_manifest(deployment, picker):
            seen = situation.observed.inference_pool
            address = seen.address if seen else None
            assert address, "planned only with a way there"
            ends = picker_slice_manifest(deployment, picker, address)
            await self._kube.apply(SERVICES, service, field_manager=FIELD_MANAGER)
            await self._kube.apply(ENDPOINT_SLICES, ends, field_manager=FIELD_MANAGER)
        await self._kube.apply(INFERENCE_POOLS, pool_manifest(deployment, picker), field_manager=FIELD_MANAGER)

    async def delete_drained(self, situation: Situation, pod: Pod) -> None:
        """Delete a pod whose requests have ended or had their time."""
        namespace = situation.deployment.key.namespace
        await self._kube.delete(PODS, namespace, pod.name, uid=pod.uid, grace_period_s=GRACE_AFTER_DRAIN_S)

    async def _create_pod(self, situation: Situation, action: CreatePod) -> None:
        """Create what the pod mounts, then the pod: one without its claim would wait for it unseen.

        The claim is never looked for, so nothing is asked at rest; one that is there, whoever made it, stays as it is.
        """
        deployment, index = situation.deployment, action.index
        name = free_name(situation, index)
        if claim_name(deployment):
            with suppress(Conflict):
                await self._kube.create(CLAIMS, claim_manifest(deployment))
        pod = pod_manifest(deployment, image=situation.image, index=index, defaults=self._defaults, name=name)
        pod = in_standby(pod) if action.is_parked else pod
        pool = situation.observed.pool
        if pool is None:
            await self._create(situation, pod)
            return
        with self._places.reserve(pool, Replica(deployment.key, index)) as slot:
            if slot is not None:  # else somebody took the last place just now: the condition says so in the next pass
                await self._create(situation, on_slot(pod, pool, slot))

    async def _create_follower(self, situation: Situation, leader: Pod, ordinal: int) -> None:
        pod = pod_manifest(
            situation.deployment,
            image=situation.image,
            index=leader.index,
            defaults=self._defaults,
            leader=leader,
            ordinal=ordinal,
        )
        await self._create(situation, pod)

    async def _create(self, situation: Situation, pod: Manifest) -> None:
        """Create a pod with its seal. Never by an apply: that would make somebody else's pod of this name our own."""
        if self._seals:
            seal = self._seals.make(situation.deployment.uid, pod["metadata"]["name"], situation.now)
            annotations = {**pod["metadata"].get("annotations", {}), ANNOTATION_SEAL: seal}
            pod = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
        await self._kube.create(PODS, pod)


def _child(
    situation: Situation,
    action: ApplyService | ApplyRanksService | ApplyDisruptionBudget | ApplyNetworkPolicy | ApplyPrePull,
    defaults: WorkerDefaults,
) -> tuple[Kind, Manifest]:
    """Return the object that has to be as it is written here, and its kind."""
    deployment = situation.deployment
    match action:
        case ApplyService():
            return SERVICES, service_manifest(deployment)
        case ApplyRanksService():
            return SERVICES, ranks_service_manifest(deployment)
        case ApplyPrePull():
            return DAEMON_SETS, pre_pull_manifest(deployment, image=situation.image, defaults=defaults)
        case ApplyDisruptionBudget():
            return DISRUPTION_BUDGETS, budget_manifest(
                deployment, situation.wanted_replicas, num_spares=len(situation.spares)
            )
        case ApplyNetworkPolicy():
            assert situation.release.arrows is not None, "planned only with arrows"
            return NETWORK_POLICIES, policy_manifest(deployment, situation.release.arrows, situation.pods)
