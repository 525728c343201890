"""Carries out actions: one action is one idempotent effect. Decides nothing; failures of one do not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from dormouse_kube.api import CLAIMS, DISRUPTION_BUDGETS, PODS, SERVICES, KubeApi
from dormouse_kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from dormouse_operator.actions import (
    POLL_S,
    Action,
    ApplyDisruptionBudget,
    ApplyService,
    ChildAction,
    CreatePod,
    DeleteDisruptionBudget,
    DeletePod,
    Drain,
    EndRequests,
    InitializeCache,
    PutToSleep,
    SetGate,
    WakeUp,
)
from dormouse_operator.errors import GroupRefused, WorkerError, WorkerRefused
from dormouse_operator.manifests import (
    FIELD_MANAGER,
    WorkerDefaults,
    budget_manifest,
    claim_manifest,
    claim_name,
    gate_manifest,
    pod_manifest,
    pod_name,
    service_manifest,
)
from dormouse_operator.model import Deployment, Observed, Pod, WorkerState
from dormouse_operator.two_phase import TwoPhase
from dormouse_operator.workers import WorkerControl

_LOG = logging.getLogger(__name__)


class Authority(Protocol):
    """The right to act."""

    @property
    def epoch(self) -> int:
        """Return the number that fences commands to workers."""
        ...

    def check(self) -> None:
        """Raise NotLeading if this operator may not act now."""
        ...


@dataclass(slots=True)
class Outcome:
    """What became of the actions."""

    refusals: dict[str, str] = field(default_factory=dict)  # by pod name: what the user should read
    failures: list[Exception] = field(default_factory=list)  # refusals included
    is_waiting: bool = False  # something was tried that needs more time

    @property
    def again_after_s(self) -> float:
        """Return when to look at the result."""
        return POLL_S if self.is_waiting else 0.0


class Executor:
    """Acts on the cluster and on workers, as long as it has the authority."""

    def __init__(
        self, kube: KubeApi, workers: WorkerControl, *, authority: Authority, defaults: WorkerDefaults
    ) -> None:
        """Take both worlds, the right to act on them, and what every worker pod gets."""
        self._kube = kube
        self._workers = workers
        self._two_phase = TwoPhase(workers)
        self._authority = authority
        self._defaults = defaults

    async def execute(self, observed: Observed, actions: Sequence[Action]) -> Outcome:
        """Carry out all actions at the same time. Raises NotLeading before any of them."""
        outcome = Outcome()
        if actions:
            self._authority.check()
        await asyncio.gather(*(self._guarded(observed, action, outcome) for action in actions))
        return outcome

    async def _guarded(self, observed: Observed, action: Action, outcome: Outcome) -> None:
        """Carry out one action and sort what goes wrong: Conflict and NotFound mean that the next look will tell."""
        try:
            await self._act(observed, action, outcome)
        except (Conflict, NotFound) as error:
            _LOG.info("%s: %s: %s", observed.deployment.key, type(action).__name__, error)
            outcome.is_waiting = True
        except GroupRefused as error:
            outcome.failures.append(error)
            outcome.refusals |= error.refusals
        except (WorkerRefused, Invalid, Forbidden) as error:
            outcome.failures.append(error)
            outcome.refusals[_subject(observed, action)] = str(error)
        except (WorkerError, KubeError) as error:
            outcome.failures.append(error)

    async def _act(self, observed: Observed, action: Action, outcome: Outcome) -> None:
        epoch, deployment = self._authority.epoch, observed.deployment
        match action:
            case ApplyService() | ApplyDisruptionBudget() | DeleteDisruptionBudget():
                await self._act_on_child(deployment, action)
            case CreatePod(index):
                await self._create_pod(observed, index)
            case DeletePod(pod):
                await self._kube.delete(PODS, deployment.key.namespace, pod.name, uid=pod.uid)
            case SetGate(pod, is_open, reason):
                gate = gate_manifest(deployment, pod, is_open=is_open, reason=reason, now=observed.now)
                await self._kube.apply(PODS, gate, field_manager=FIELD_MANAGER, subresource="status")
            case InitializeCache(pod, num_gpu, num_cpu):
                await self._workers.initialize_cache(
                    pod.ip, epoch=epoch, num_gpu_blocks=num_gpu, num_cpu_blocks=num_cpu
                )
            case Drain(pod):
                outcome.is_waiting |= await self._workers.drain(pod.ip, epoch=epoch) > 0
            case EndRequests(pod):
                await self._workers.prepare_sleep(pod.ip, epoch=epoch, level=1, abort=True)
            case PutToSleep(pods, level, must_abort):
                await self._two_phase.put_to_sleep(pods, level, epoch=epoch, abort=must_abort)
            case WakeUp(pods):
                await self._wake_up(observed, pods, epoch)

    async def _wake_up(self, observed: Observed, pods: Sequence[Pod], epoch: int) -> None:
        """Wake who sleeps; who only drains is opened again."""
        asleep = [pod for pod in pods if observed.state(pod) is WorkerState.ASLEEP]
        draining = [pod for pod in pods if pod not in asleep]
        await asyncio.gather(*(self._workers.wake_up(pod.ip, epoch=epoch) for pod in draining))
        await self._two_phase.wake_up(asleep, epoch=epoch)

    async def _act_on_child(self, deployment: Deployment, action: ChildAction) -> None:
        match action:
            case ApplyService():
                await self._kube.apply(SERVICES, service_manifest(deployment), field_manager=FIELD_MANAGER)
            case ApplyDisruptionBudget():
                await self._kube.apply(DISRUPTION_BUDGETS, budget_manifest(deployment), field_manager=FIELD_MANAGER)
            case DeleteDisruptionBudget(uid):
                await self._kube.delete(DISRUPTION_BUDGETS, *deployment.key, uid=uid)

    async def _create_pod(self, observed: Observed, index: int) -> None:
        """Create what the pod mounts, then the pod: one without its claim would wait for it unseen.

        The claim is never looked for, so nothing is asked at rest; one that is there, whoever made it, stays as it is.
        """
        deployment = observed.deployment
        if claim_name(deployment):
            with suppress(Conflict):
                await self._kube.create(CLAIMS, claim_manifest(deployment))
        pod = pod_manifest(deployment, image=observed.image, index=index, defaults=self._defaults)
        await self._kube.apply(PODS, pod, field_manager=FIELD_MANAGER)


def _subject(observed: Observed, action: Action) -> str:
    """Return the name of the pod that the action is about, "" for none."""
    match action:
        case ApplyService() | ApplyDisruptionBudget() | DeleteDisruptionBudget():
            return ""
        case CreatePod(index):
            return pod_name(observed.deployment.key.name, observed.revision, index)
        case PutToSleep(pods) | WakeUp(pods):
            return pods[0].name
        case _:
            return action.pod.name
