"""Carries out actions: one action is one idempotent effect. Decides nothing; failures of one do not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from dormouse_kube.errors import Conflict, Forbidden, KubeError, NotFound
from dormouse_operator.act.cluster_effects import ClusterEffects
from dormouse_operator.act.places import Places
from dormouse_operator.act.worker_effects import WorkerEffects
from dormouse_operator.act.workers import WorkerControl
from dormouse_operator.act.writes import Authority, Writer
from dormouse_operator.decide.actions import POLL_S, Action, ClusterAction, RemovePod, pods_of
from dormouse_operator.decide.seals import Seals
from dormouse_operator.decide.situation import Situation
from dormouse_operator.errors import GroupRefused, RequestCameIn, WorkerError, WorkerRefused
from dormouse_operator.manifests import WorkerDefaults

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What became of the actions."""

    refusals: dict[str, str] = field(default_factory=dict)  # by pod name: the worker's words
    rejections: dict[str, KubeError] = field(default_factory=dict)  # by object, as "Kind name": the API server's answer
    failures: list[Exception] = field(default_factory=list)  # refusals included
    forbidden: str = ""  # the API server's words, where the operator has no right to do something
    is_waiting: bool = False  # something was tried that needs more time

    @property
    def again_after_s(self) -> float:
        """Return when to look at the result."""
        return POLL_S if self.is_waiting else 0.0


class Executor:
    """Acts on the cluster and on workers, as long as it has the authority."""

    def __init__(
        self,
        kube: Writer,
        workers: WorkerControl,
        *,
        authority: Authority,
        defaults: WorkerDefaults,
        places: Places,
        seals: Seals | None = None,
    ) -> None:
        """Take both worlds, the right to act, what every worker pod gets, who knows free slots, and the pods' seals."""
        self._cluster = ClusterEffects(kube, defaults, places, seals)
        self._workers = WorkerEffects(workers)
        self._authority = authority

    async def execute(self, situation: Situation, actions: Sequence[Action]) -> Outcome:
        """Carry out all actions at the same time. Raises NotLeading before any of them."""
        outcome = Outcome()
        if actions:
            self._authority.check()
        await asyncio.gather(*(self._guarded(situation, action, outcome) for action in actions))
        return outcome

    async def _guarded(self, situation: Situation, action: Action, outcome: Outcome) -> None:
        """Carry out one action and sort what goes wrong: Conflict and NotFound mean that the next look will tell."""
        try:
            outcome.is_waiting |= await self._act(situation, action)
        except (Conflict, NotFound) as error:
            _LOG.info("%s: %s: %s", situation.deployment.key, type(action).__name__, error)
            outcome.rejections[error.about] = error
            outcome.is_waiting = True
        except RequestCameIn as error:  # the next look sees it, too, and wakes
            _LOG.info("%s: the sleep is cancelled: %s", situation.deployment.key, error)
        except GroupRefused as error:
            outcome.failures.append(error)
            outcome.refusals |= error.refusals
        except WorkerRefused as error:
            outcome.failures.append(error)
            outcome.refusals |= {pod.name: str(error) for pod in pods_of(action)[:1]}
        except WorkerError as error:
            outcome.failures.append(error)
        except KubeError as error:
            outcome.failures.append(error)
            outcome.rejections[error.about] = error
            if isinstance(error, Forbidden) and error.is_missing_right:
                outcome.forbidden = str(error)

    async def _act(self, situation: Situation, action: Action) -> bool:
        """Carry out one action; return whether it needs more time."""
        epoch = self._authority.epoch
        if isinstance(action, RemovePod):
            if not action.must_end and not await self._workers.drain(action.pod, epoch):
                return True
            await self._cluster.delete_drained(situation, action.pod)
            return False
        if isinstance(action, ClusterAction):
            await self._cluster.act(situation, action)
            return False
        return await self._workers.act(situation, action, epoch)
