"""The one writer of `replicas` where spec.scaling is set. Carries out what `scaling` decides, and nothing else.

It counts who else writes them: every change that is not ours is somebody else's. Where spec.scaling is not set,
`replica_writers` looks who they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, KubeApi, Resource
from dormouse_kube.errors import Conflict, KubeError, NotFound
from dormouse_operator.act.event_recorder import record_event
from dormouse_operator.act.replica_writers import RecentWrites, ReplicaWriters
from dormouse_operator.act.writes import Authority
from dormouse_operator.decide.scaling import Decision, History, decide
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model import Activity, Contest, Deployment, Key, Scaling

_LOG = logging.getLogger(__name__)

SCALER = "dormouse-scaler"  # the field manager, apart from the operator's own
PERIOD_S = 15.0  # between two looks, as the HorizontalPodAutoscaler's


@dataclass(slots=True)
class _Scaled:
    """A deployment that is scaled here. The history may be lost: then nothing is taken away for the first minutes."""

    uid: str
    scaling: Scaling
    replicas: int
    generation: int  # of the spec that was observed last
    history: History = ()
    rivals: RecentWrites = field(default_factory=RecentWrites)  # of replicas, by somebody else

    def saw(self, deployment: Deployment, scaling: Scaling, now_s: float) -> bool:
        """Take what was observed; return whether somebody else wrote replicas.

        A spec from before our last write tells nothing new.
        """
        self.scaling = scaling
        if deployment.generation <= self.generation:
            return False
        is_rivals = deployment.replicas != self.replicas
        if is_rivals:
            self.rivals.add(now_s)
        self.generation, self.replicas = deployment.generation, deployment.replicas
        return is_rivals


class Scaler:
    """Knows the deployments that are to be scaled, and looks after them every few seconds."""

    def __init__(
        self,
        kube: KubeApi,
        activities: Mapping[Key, Activity],
        *,
        authority: Authority,
        clock: Callable[[], float],
        reporter: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        mark: Callable[[Key], object] = lambda _: None,
    ) -> None:
        """Take the load (what is missing is not known), a monotonic clock, and who reports Events, when.

        `mark` is told of a deployment whose `contest` changed.
        """
        self._kube = kube
        self._activities = activities
        self._authority = authority
        self._clock = clock
        self._reporter = reporter
        self._now = now
        self._mark = mark
        self._scaled: dict[Key, _Scaled] = {}
        self._others = ReplicaWriters()

    def __repr__(self) -> str:
        """Show who is scaled, and how many there are."""
        return f"Scaler({', '.join(f'{key}={scaled.replicas}' for key, scaled in sorted(self._scaled.items()))})"

    def saw(self, situation: Situation) -> None:
        """Take a deployment as it was just observed."""
        deployment = situation.deployment
        scaling = deployment.scaling
        is_partial = situation.num_away > 0  # `replicas` are not those of the spec
        if scaling is None:
            self._scaled.pop(deployment.key, None)
            if self._others.saw(deployment, self._clock()):
                self._mark(deployment.key)
            return
        self._others.forget(deployment.key)
        if situation.is_idle or is_partial or not _may_scale(deployment):
            self._scaled.pop(deployment.key, None)
            return
        known = self._scaled.get(deployment.key)
        if known is None or known.uid != deployment.uid:
            self._scaled[deployment.key] = _Scaled(deployment.uid, scaling, deployment.replicas, deployment.generation)
        elif known.saw(deployment, scaling, self._clock()):
            self._mark(deployment.key)

    def contest(self, key: Key) -> Contest:
        """Return how often somebody wrote replicas in the last 15 minutes that others write, too."""
        scaled = self._scaled.get(key)
        return scaled.rivals.contest(self._clock()) if scaled else self._others.contest(key, self._clock())

    def forget(self, key: Key) -> None:
        """Scale this one no more; safe if it was not."""
        self._scaled.pop(key, None)
        self._others.forget(key)

    def rejected(self, key: Key, uid: str) -> None:  # noqa: ARG002  # as every listener is told
        """Scale this one no more, for it says nothing that can be read."""
        self.forget(key)

    async def run(self, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        """Look after all deployments, again and again. Raises NotLeading."""
        while True:
            await sleep(PERIOD_S)
            await self.step()

    async def step(self) -> None:
        """Look once. What fails for one deployment is tried again the next time. Raises NotLeading."""
        for key in self._others.drop_old(self._clock()):
            self._mark(key)
        for key, scaled in list(self._scaled.items()):
            if scaled.rivals.drop_old(self._clock()):
                self._mark(key)
            decision = decide(self._clock(), scaled.scaling, scaled.replicas, self._activities.get(key), scaled.history)
            scaled.history = decision.history
            if decision.replicas != scaled.replicas:
                await self._try_to_write(key, scaled, decision)

    async def _try_to_write(self, key: Key, scaled: _Scaled, decision: Decision) -> None:
        try:
            await self._write(key, scaled, decision)
        except (NotFound, Conflict) as error:  # it changed meanwhile: it will be seen
            _LOG.debug("%s: replicas were not set to %d: %s", key, decision.replicas, error)
        except KubeError as error:
            _LOG.warning("%s: replicas were not set to %d: %s", key, decision.replicas, error)

    async def _write(self, key: Key, scaled: _Scaled, decision: Decision) -> None:
        """Set the replicas of the very object that the decision was about, and tell."""
        stored = await self._kube.get(INFERENCE_DEPLOYMENTS, *key)
        if stored is None or not _is_still(scaled, stored):
            return
        self._authority.check()
        version = stored["metadata"]["resourceVersion"]
        await self._kube.patch_scale(
            INFERENCE_DEPLOYMENTS, *key, replicas=decision.replicas, field_manager=SCALER, resource_version=version
        )
        words = f"replicas {scaled.replicas} → {decision.replicas}: {decision.reason}"
        scaled.replicas = decision.replicas
        scaling = EventRecord("Normal", "Scaled", words)
        await record_event(self._kube, scaling, key=key, uid=scaled.uid, now=self._now(), reporter=self._reporter)


def _is_still(scaled: _Scaled, stored: Resource) -> bool:
    """Return whether the object and its replicas are those that were last observed; else it will be observed anew."""
    is_same = stored["metadata"]["uid"] == scaled.uid
    return is_same and bool(stored["spec"].get("replicas", 1) == scaled.replicas)


def _may_scale(deployment: Deployment) -> bool:
    """Return whether a load could ask for replicas: off is off, and an order to sleep stands over any load."""
    is_up = deployment.replicas > 0 and deployment.lifecycle.desired_state not in {"Asleep", "Zero"}
    return is_up and not deployment.is_deleting
