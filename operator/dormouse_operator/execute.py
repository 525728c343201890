"""Carries out actions: one action is one idempotent effect. Decides nothing; failures of one do not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from dormouse_kube.api import PODS, SERVICES
from dormouse_kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from dormouse_operator.actions import (
    POLL_S,
    Action,
    ApplyService,
    CreatePod,
    DeletePod,
    InitializeCache,
    PutToSleep,
    SetGate,
    WakeUp,
)
from dormouse_operator.errors import WorkerError, WorkerRefused
from dormouse_operator.manifests import (
    FIELD_MANAGER,
    WorkerDefaults,
    gate_manifest,
    pod_manifest,
    pod_name,
    service_manifest,
)
from dormouse_operator.model import Observed
from dormouse_operator.workers import WorkerControl
from dormouse_operator.writes import Authority, Writer

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What became of the actions."""

    refusals: dict[str, str] = field(default_factory=dict)  # by pod name: what the user should read
    failures: list[Exception] = field(default_factory=list)  # refusals included
    forbidden: str = ""  # the API server's words, where the operator has no right to do something
    is_waiting: bool = False  # something was tried that needs more time

    @property
    def again_after_s(self) -> float:
        """Return when to look at the result."""
        return POLL_S if self.is_waiting else 0.0


class Executor:
    """Acts on the cluster and on workers, as long as it has the authority."""

    def __init__(self, kube: Writer, workers: WorkerControl, *, authority: Authority, defaults: WorkerDefaults) -> None:
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
            if isinstance(error, Forbidden) and error.is_missing_right:
                outcome.forbidden = str(error)
        except (WorkerError, KubeError) as error:
            outcome.failures.append(error)

    async def _act(self, observed: Observed, action: Action, outcome: Outcome) -> None:
        epoch, deployment = self._authority.epoch, observed.deployment
        match action:
            case ApplyService():
                await self._kube.apply(SERVICES, service_manifest(deployment), field_manager=FIELD_MANAGER)
            case CreatePod(index):
                pod = pod_manifest(deployment, image=observed.image, index=index, defaults=self._defaults)
                await self._kube.apply(PODS, pod, field_manager=FIELD_MANAGER)
            case DeletePod(pod):
                await self._kube.delete(PODS, deployment.key.namespace, pod.name, uid=pod.uid)
            case SetGate(pod, is_open, reason):
                gate = gate_manifest(deployment, pod, is_open=is_open, reason=reason, now=observed.now)
                await self._kube.apply(PODS, gate, field_manager=FIELD_MANAGER, subresource="status")
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


def _subject(observed: Observed, action: Action) -> str:
    """Return the name of the pod that the action is about, "" for none."""
    match action:
        case ApplyService():
            return ""
        case CreatePod(index):
            return pod_name(observed.deployment.key.name, observed.revision, index)
        case _:
            return action.pod.name
