"""The conductor of one pass over one object: observe → plan → publish → execute.

The status is published before anything is done: what is agreed stands in the status before a worker allocates it.
After an action the object is looked at again at once, so the status that stays is always one that was observed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

from dormouse_kube.api import EVENTS, INFERENCE_DEPLOYMENTS, KubeApi
from dormouse_kube.errors import Conflict, KubeError, NotFound
from dormouse_operator import planner
from dormouse_operator.conditions.steps import evaluate_all
from dormouse_operator.execute import Authority, Executor
from dormouse_operator.manifests import Occurrence, event_manifest
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import Deployment, Key, Observed
from dormouse_operator.observe import Fingerprint, Observer
from dormouse_operator.occurrences import occurrences
from dormouse_operator.parse import SpecError, format_time
from dormouse_operator.status import build_status, status_patch

_LOG = logging.getLogger(__name__)


class Leader(Authority, Protocol):
    """The right to act, and the way to outrank an earlier holder."""

    async def raise_above(self, epoch: int) -> None:
        """Make the own epoch greater than this one."""
        ...


class Follower(Protocol):
    """Who wants to know every deployment as it was last observed."""

    def saw(self, deployment: Deployment) -> None:
        """Take a deployment."""
        ...

    def forget(self, key: Key) -> None:
        """Know that it is gone, or that its spec can not be read."""
        ...


class PassFailed(Exception):
    """Something of a pass did not succeed; the next pass tries again."""


class Reconciler:
    """Runs passes. What it keeps in memory can be lost: what was seen last, and why the last actions failed."""

    def __init__(  # noqa: PLR0913  # three stages, whom they obey, who is told, two texts
        self,
        kube: KubeApi,
        observer: Observer,
        executor: Executor,
        *,
        leader: Leader,
        metrics: Metrics,
        url: str = "",
        reporter: str = "",
        followers: Sequence[Follower] = (),
    ) -> None:
        """Take the stages; `url` goes to the status, `reporter` to Events."""
        self._kube = kube
        self._observer = observer
        self._executor = executor
        self._leader = leader
        self._metrics = metrics
        self._url = url
        self._reporter = reporter
        self._followers = followers
        self._refusals: dict[Key, dict[str, str]] = {}
        self._seen: dict[Key, Fingerprint] = {}

    def __repr__(self) -> str:
        """Show how many objects it has seen."""
        return f"Reconciler({len(self._seen)} objects, {len(self._refusals)} with refusals)"

    @property
    def seen(self) -> Mapping[Key, Fingerprint]:
        """Return the mark of what the last pass over each object saw."""
        return self._seen

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return after how many seconds to make the next, None if only a change is a reason for one.

        Raises PassFailed, KubeError, NotLeading.
        """
        with self._metrics.step("observe"):
            try:
                sighting = await self._observer.observe(key, self._refusals.get(key, {}))
            except SpecError as error:
                await self._reject(key, error)
                return None
        if sighting is None:
            self._forget(key)
            return None
        observed, self._seen[key] = sighting
        for follower in self._followers:
            follower.saw(observed.deployment)
        return await self._proceed(observed)

    async def _proceed(self, observed: Observed) -> float | None:
        """Plan, publish and execute."""
        key = observed.deployment.key
        await self._outrank(observed)
        with self._metrics.step("plan"):
            plan = planner.plan(observed)
        with self._metrics.step("publish"):
            await self._publish(observed)
        with self._metrics.step("execute"):
            outcome = await self._executor.execute(observed, plan.actions)
        self._refusals[key] = outcome.refusals
        if outcome.failures:
            raise PassFailed("; ".join(str(failure) for failure in outcome.failures))
        return outcome.again_after_s if plan.actions else plan.requeue_after_s

    async def _outrank(self, observed: Observed) -> None:
        """Make sure that no worker has seen a higher epoch than ours."""
        highest = max((worker.epoch for worker in observed.workers.values()), default=0)
        if highest > self._leader.epoch:
            await self._leader.raise_above(highest)

    async def _publish(self, observed: Observed) -> None:
        """Write the status if it changed, then tell what happened."""
        if observed.deployment.is_deleting:
            return
        deployment = observed.deployment
        evaluated = evaluate_all(observed)
        conditions = {condition.type: condition for condition in evaluated}
        status = build_status(observed, evaluated, url=self._url)
        self._metrics.show(observed, status)
        patch = status_patch(deployment.recorded.raw, status)
        if not patch:
            return
        self._leader.check()
        with suppress(NotFound):  # deleted since it was read
            await self._kube.patch_status(INFERENCE_DEPLOYMENTS, *deployment.key, patch)
        self._metrics.count_actuation(deployment.recorded, status)
        for occurrence in occurrences(observed, conditions):
            self._metrics.count_occurrence(observed, occurrence)
            await self._tell(observed, occurrence)

    async def _tell(self, observed: Observed, occurrence: Occurrence) -> None:
        """Write an Event; one that can not be written is logged and forgotten."""
        deployment = observed.deployment
        _LOG.info("%s: %s: %s", deployment.key, occurrence.reason, occurrence.message)
        manifest = event_manifest(
            occurrence, key=deployment.key, uid=deployment.uid, now=observed.now, reporter=self._reporter
        )
        try:
            with suppress(Conflict):  # told already
                await self._kube.create(EVENTS, manifest)
        except KubeError as error:
            _LOG.warning("%s: event %s was not written: %s", deployment.key, occurrence.reason, error)

    async def _reject(self, key: Key, error: SpecError) -> None:
        """Say in the status what our schema would have refused; only a cluster without it lets such a spec pass."""
        condition = {
            "type": "Accepted",
            "status": "False",
            "reason": "InvalidSpec",
            "message": str(error),
            "lastTransitionTime": format_time(datetime.now(UTC)),
        }
        _LOG.warning("%s: %s", key, error)
        for follower in self._followers:
            follower.forget(key)
        with suppress(NotFound):
            status = {"phase": "Rejected", "conditions": [condition]}
            await self._kube.patch_status(INFERENCE_DEPLOYMENTS, *key, status)

    def _forget(self, key: Key) -> None:
        """Drop what is kept of an object that is gone."""
        self._refusals.pop(key, None)
        self._seen.pop(key, None)
        self._metrics.forget(key)
        for follower in self._followers:
            follower.forget(key)
