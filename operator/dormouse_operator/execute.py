"""Carries out actions: one action is one idempotent effect. Decides nothing; failures of one do not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from dormouse_kube.api import PODS, SERVICES, KubeApi
from dormouse_kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from dormouse_operator.actions import (
    POLL_S,
    Action,
    ApplyService,
    CreatePod,
    DeletePod,
    InitializeCache,
    PutToSleep,
    Relabel,
    RemovePod,
    RolloutAction,
    SetGate,
    SwapEngine,
    WakeUp,
)
from dormouse_operator.children import free_name
from dormouse_operator.errors import WorkerError, WorkerRefused, WorkerUnreachable
from dormouse_operator.manifests import (
    FIELD_MANAGER,
    WorkerDefaults,
    gate_manifest,
    pod_manifest,
    revision_manifest,
    service_manifest,
    worker_arguments,
)
from dormouse_operator.model import Observed, Pod, WorkerState
from dormouse_operator.workers import WorkerControl

_REVISION_MANAGER = f"{FIELD_MANAGER}-revision"
_GRACE_AFTER_DRAIN_S = 15  # for the end of the processes; the requests have had their time

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
        except (WorkerRefused, Invalid, Forbidden) as error:
            outcome.failures.append(error)
            outcome.refusals[_subject(observed, action)] = str(error)
        except (WorkerError, KubeError) as error:
            outcome.failures.append(error)

    async def _act(self, observed: Observed, action: Action, outcome: Outcome) -> None:
        epoch, deployment = self._authority.epoch, observed.deployment
        match action:
            case ApplyService():
                await self._kube.apply(SERVICES, service_manifest(deployment), field_manager=FIELD_MANAGER)
            case CreatePod(index):
                name = free_name(observed, index)
                made = pod_manifest(deployment, image=observed.image, index=index, defaults=self._defaults, name=name)
                await self._kube.apply(PODS, made, field_manager=FIELD_MANAGER)
            case DeletePod(pod):
                await self._kube.delete(PODS, deployment.key.namespace, pod.name, uid=pod.uid)
            case SetGate(pod, is_open, reason):
                gate = gate_manifest(deployment, pod, is_open=is_open, reason=reason, now=observed.now)
                await self._kube.apply(PODS, gate, field_manager=FIELD_MANAGER, subresource="status")
            case RemovePod() | SwapEngine() | Relabel():
                await self._roll_out(observed, action, outcome)
            case InitializeCache(pod, num_gpu, num_cpu):
                await self._workers.initialize_cache(
                    pod.ip, epoch=epoch, num_gpu_blocks=num_gpu, num_cpu_blocks=num_cpu
                )
            case WakeUp(pod):
                await self._workers.wake_up(pod.ip, epoch=epoch)
            case PutToSleep(pod, must_abort):
                remaining = 0 if must_abort else await self._workers.drain(pod.ip, epoch=epoch)
                if remaining:
                    outcome.is_waiting = True
                else:
                    await self._workers.sleep(pod.ip, epoch=epoch, abort=must_abort)

    async def _roll_out(self, observed: Observed, action: RolloutAction, outcome: Outcome) -> None:
        match action:
            case Relabel(pod, revision):
                label = revision_manifest(observed.deployment, pod, revision)
                await self._kube.apply(PODS, label, field_manager=_REVISION_MANAGER)
            case RemovePod(pod, must_end):
                await self._remove(observed, pod, outcome, must_end=must_end)
            case SwapEngine(pod, must_end):
                await self._swap(observed, pod, outcome, must_end=must_end)

    async def _remove(self, observed: Observed, pod: Pod, outcome: Outcome, *, must_end: bool) -> None:
        """Delete a pod whose requests have ended or had their time."""
        if not must_end and await self._workers.drain(pod.ip, epoch=self._authority.epoch):
            outcome.is_waiting = True
            return
        namespace = observed.deployment.key.namespace
        await self._kube.delete(PODS, namespace, pod.name, uid=pod.uid, grace_period_s=_GRACE_AFTER_DRAIN_S)

    async def _swap(self, observed: Observed, pod: Pod, outcome: Outcome, *, must_end: bool) -> None:
        """Give a worker another engine once its requests have ended or had their time."""
        epoch, deployment, worker = self._authority.epoch, observed.deployment, observed.worker(pod)
        is_begun = worker is not None and bool(worker.swapping_to)
        serves = worker is not None and worker.state in {WorkerState.READY, WorkerState.DRAINING}
        if must_end:
            await self._workers.sleep(pod.ip, epoch=epoch, abort=True)
        elif serves and not is_begun and await self._workers.drain(pod.ip, epoch=epoch):
            outcome.is_waiting = True
            return
        with _waiting_for_a_swap(outcome):
            await self._workers.swap_engine(
                pod.ip,
                epoch=epoch,
                arguments=worker_arguments(deployment),
                settings_digest=observed.revision,
                timeout_s=float(deployment.rollout.progress_deadline_s),
            )


@contextmanager
def _waiting_for_a_swap(outcome: Outcome) -> Iterator[None]:
    """Let a swap take longer than one call: it goes on without us."""
    try:
        yield
    except WorkerUnreachable:
        outcome.is_waiting = True


def _subject(observed: Observed, action: Action) -> str:
    """Return the name of the pod that the action is about, "" for none."""
    match action:
        case ApplyService():
            return ""
        case CreatePod(index):
            return free_name(observed, index)
        case _:
            return action.pod.name
