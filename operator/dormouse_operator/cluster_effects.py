"""Actions on the cluster's objects: each is one idempotent write, or two. Decides nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import assert_never

from dormouse_kube.api import CLAIMS, DISRUPTION_BUDGETS, PODS, SERVICES
from dormouse_kube.errors import Conflict
from dormouse_operator.actions import (
    ApplyDisruptionBudget,
    ApplyRanksService,
    ApplyService,
    ClusterAction,
    CreateFollower,
    CreatePod,
    DeleteDisruptionBudget,
    DeletePod,
    Relabel,
    SetGate,
)
from dormouse_operator.children import free_name
from dormouse_operator.manifests import (
    FIELD_MANAGER,
    GRACE_AFTER_DRAIN_S,
    WorkerDefaults,
    budget_manifest,
    claim_manifest,
    claim_name,
    gate_manifest,
    pod_manifest,
    ranks_service_manifest,
    revision_manifest,
    service_manifest,
)
from dormouse_operator.model import Observed, Pod
from dormouse_operator.writes import Writer

_REVISION_MANAGER = f"{FIELD_MANAGER}-revision"


class ClusterEffects:
    """Writes to the API server. Raises KubeError."""

    def __init__(self, kube: Writer, defaults: WorkerDefaults) -> None:
        """Take where to write, and what every worker pod gets."""
        self._kube = kube
        self._defaults = defaults

    async def act(self, observed: Observed, action: ClusterAction) -> None:
        """Carry out one action."""
        deployment = observed.deployment
        match action:
            case ApplyService():
                await self._kube.apply(SERVICES, service_manifest(deployment), field_manager=FIELD_MANAGER)
            case ApplyRanksService():
                await self._kube.apply(SERVICES, ranks_service_manifest(deployment), field_manager=FIELD_MANAGER)
            case ApplyDisruptionBudget():
                await self._kube.apply(
                    DISRUPTION_BUDGETS, budget_manifest(deployment, len(observed.spares)), field_manager=FIELD_MANAGER
                )
            case DeleteDisruptionBudget(uid):
                await self._kube.delete(DISRUPTION_BUDGETS, *deployment.key, uid=uid)
            case CreatePod(index):
                await self._create_pod(observed, index)
            case CreateFollower(leader, ordinal):
                await self._create_follower(observed, leader, ordinal)
            case DeletePod(pod):
                await self._kube.delete(PODS, deployment.key.namespace, pod.name, uid=pod.uid)
            case Relabel(pod, revision):
                label = revision_manifest(deployment, pod, revision)
                await self._kube.apply(PODS, label, field_manager=_REVISION_MANAGER)
            case SetGate(pod, is_open, reason):
                gate = gate_manifest(deployment, pod, is_open=is_open, reason=reason, now=observed.now)
                await self._kube.apply(PODS, gate, field_manager=FIELD_MANAGER, subresource="status")
            case _:
                assert_never(action)

    async def delete_drained(self, observed: Observed, pod: Pod) -> None:
        """Delete a pod whose requests have ended or had their time."""
        namespace = observed.deployment.key.namespace
        await self._kube.delete(PODS, namespace, pod.name, uid=pod.uid, grace_period_s=GRACE_AFTER_DRAIN_S)

    async def _create_pod(self, observed: Observed, index: int) -> None:
        """Create what the pod mounts, then the pod: one without its claim would wait for it unseen.

        The claim is never looked for, so nothing is asked at rest; one that is there, whoever made it, stays as it is.
        """
        deployment, name = observed.deployment, free_name(observed, index)
        if claim_name(deployment):
            with suppress(Conflict):
                await self._kube.create(CLAIMS, claim_manifest(deployment))
        pod = pod_manifest(deployment, image=observed.image, index=index, defaults=self._defaults, name=name)
        await self._kube.apply(PODS, pod, field_manager=FIELD_MANAGER)

    async def _create_follower(self, observed: Observed, leader: Pod, ordinal: int) -> None:
        pod = pod_manifest(
            observed.deployment,
            image=observed.image,
            index=leader.index,
            defaults=self._defaults,
            leader=leader,
            ordinal=ordinal,
        )
        await self._kube.apply(PODS, pod, field_manager=FIELD_MANAGER)
