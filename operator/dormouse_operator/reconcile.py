"""The conductor of one pass over one object: observe → plan → publish → execute.

The status is published before anything is done: what is agreed stands in the status before a worker allocates it.
After an action the object is looked at again at once, so the status that stays is always one that was observed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Conflict, Forbidden, NotFound, Unavailable
from dormouse_operator import pace, planner
from dormouse_operator.actions import POLL_S, Plan
from dormouse_operator.cache import Snapshot
from dormouse_operator.conditions.steps import evaluate_all
from dormouse_operator.execute import Executor, Outcome
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import Key, Observed
from dormouse_operator.observe import Observer, Sighting
from dormouse_operator.occurrences import occurrences
from dormouse_operator.parse import SpecError, parse_status
from dormouse_operator.refusals import Refusals, hear
from dormouse_operator.status import build_status, rejected_status, status_patch
from dormouse_operator.tell import tell
from dormouse_operator.writes import Authority, Writer

_LOG = logging.getLogger(__name__)

_TOLD_POLL_S = 15.0  # in place of polling where workers tell by themselves: in case they do not
_STRANGER_S = 30.0  # until a name that is somebody else's is tried again
_STALE_S = 0.5  # what was written to is newer than what was observed: look again then, if the watch told nothing


class Leader(Authority, Protocol):
    """The right to act, and the way to outrank an earlier holder."""

    async def raise_above(self, epoch: int) -> None:
        """Make the own epoch greater than this one."""
        ...


class Follower(Protocol):
    """Who wants to know every deployment as it was last observed."""

    def saw(self, observed: Observed) -> None:
        """Take a deployment."""
        ...

    def forget(self, key: Key) -> None:
        """Know that it is gone, or that its spec can not be read."""
        ...


class PassFailed(Exception):
    """Something of a pass did not succeed; the next pass tries again, after `retry_after_s` at the earliest."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Take what failed, and when the API server wants to hear of us again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _Published(NamedTuple):
    """What became of the status."""

    put_off_s: float = 0.0
    must_wait: bool = False  # nothing may be done before it is written


class Reconciler:
    """Runs passes. What it keeps in memory can be lost: what was seen, when it wrote, why the last actions failed."""

    def __init__(  # noqa: PLR0913  # the stages, and what goes into what they write
        self,
        writer: Writer,
        observer: Observer,
        executor: Executor,
        *,
        leader: Leader,
        metrics: Metrics,
        url: str = "",
        reporter: str = "",
        followers: Sequence[Follower] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the stages; `url` goes to the status, `reporter` to Events."""
        self._writer = writer
        self._observer = observer
        self._executor = executor
        self._leader = leader
        self._metrics = metrics
        self._url = url
        self._reporter = reporter
        self._followers = followers
        self._monotonic = monotonic
        self._refusals: dict[Key, Refusals] = {}
        self._seen: dict[Key, int] = {}
        self._written: dict[Key, tuple[float, ...]] = {}  # when the last statuses were

    def __repr__(self) -> str:
        """Show how many objects it has seen."""
        return f"Reconciler({len(self._seen)} objects, {len(self._refusals)} with refusals)"

    @property
    def seen(self) -> Mapping[Key, int]:
        """Return the version of the cache that the last pass over each object saw."""
        return self._seen

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return after how many seconds to make the next, None if only a change is a reason for one.

        Raises PassFailed, KubeError, NotLeading.
        """
        with self._metrics.step("observe"):
            snapshot = self._observer.look(key)
            if snapshot is None:
                self._forget(key)
                return None
            self._seen[key] = snapshot.version
            try:
                sighting = await self._observer.observe(snapshot, self._refusals.get(key, Refusals()))
            except SpecError as error:
                await self._reject(key, snapshot, error)
                return None
        for follower in self._followers:
            follower.saw(sighting.observed)
        return await self._proceed(sighting)

    async def _proceed(self, sighting: Sighting) -> float | None:
        """Plan, publish and execute."""
        observed = sighting.observed
        key = observed.deployment.key
        await self._outrank(observed)
        with self._metrics.step("plan"):
            plan = planner.plan(observed)
        with self._metrics.step("publish"):
            published = await self._publish(sighting, plan)
        if published.must_wait:
            return published.put_off_s
        with self._metrics.step("execute"):
            outcome = await self._executor.execute(observed, plan.actions)
        self._note(key, outcome)
        if outcome.failures:
            raise PassFailed("; ".join(str(it) for it in outcome.failures), retry_after_s=_retry_after_s(outcome))
        if plan.actions:
            self._observer.refresh(key)
            return outcome.again_after_s
        return _soonest(published.put_off_s or None, _requeue_after_s(plan, sighting))

    def _note(self, key: Key, outcome: Outcome) -> None:
        """Remember what was refused, for the conditions of the next pass."""
        heard = hear(self._refusals.get(key, Refusals()), outcome.rejections)
        if outcome.refusals or outcome.forbidden or heard:
            self._refusals[key] = Refusals(outcome.refusals, outcome.forbidden, heard)
        else:
            self._refusals.pop(key, None)

    async def _outrank(self, observed: Observed) -> None:
        """Make sure that no worker has seen a higher epoch than ours."""
        highest = max((worker.epoch for worker in observed.workers.values()), default=0)
        if highest > self._leader.epoch:
            await self._leader.raise_above(highest)

    async def _publish(self, sighting: Sighting, plan: Plan) -> _Published:
        """Write the status if it changed and its time has come, then tell what happened."""
        observed = sighting.observed
        deployment = observed.deployment
        if deployment.is_deleting:
            return _Published()
        evaluated = evaluate_all(observed)
        status = build_status(observed, evaluated, url=self._url)
        self._metrics.show(observed, status)
        patch = status_patch(deployment.recorded.raw, status)
        if not patch:
            return _Published()
        now, writes = self._monotonic(), self._written.get(deployment.key, ())
        put_off_s = pace.put_off_s(deployment.recorded, status, plan.actions, writes=writes, now=now)
        if put_off_s > 0.0:
            return _Published(put_off_s, must_wait=any(pace.is_command(action) for action in plan.actions))
        if not await self._patch(deployment.key, patch, sighting.resource_version):
            return _Published(_STALE_S, must_wait=True)
        self._written[deployment.key] = (*writes, now)[-pace.BURST :]
        self._metrics.count_actuation(deployment.recorded, status)
        for occurrence in occurrences(observed, {condition.type: condition for condition in evaluated}):
            self._metrics.count_occurrence(observed, occurrence)
            await tell(
                self._writer,
                occurrence,
                key=deployment.key,
                uid=deployment.uid,
                now=observed.now,
                reporter=self._reporter,
            )
        return _Published()

    async def _patch(self, key: Key, patch: Mapping[str, object], resource_version: str) -> bool:
        """Write the status of the version that was observed; tell whether it was still that one."""
        try:
            await self._writer.patch_status(INFERENCE_DEPLOYMENTS, *key, patch, resource_version=resource_version)
        except (Conflict, NotFound) as error:
            _LOG.info("%s: changed since it was observed: %s", key, error)
            return False
        except Forbidden as error:
            if error.is_missing_right:
                known = self._refusals.get(key, Refusals())
                self._refusals[key] = known._replace(forbidden=str(error))
            raise
        return True

    async def _reject(self, key: Key, snapshot: Snapshot, error: SpecError) -> None:
        """Say in the status what no schema can refuse: a bad cron line, or anything in a cluster without our schema."""
        recorded = parse_status(snapshot.deployment.get("status") or {}).conditions.get("Accepted")
        if recorded and (recorded.condition.reason, recorded.condition.message) == ("InvalidSpec", str(error)):
            return
        _LOG.warning("%s: %s", key, error)
        for follower in self._followers:
            follower.forget(key)
        metadata = snapshot.deployment["metadata"]
        status = rejected_status(str(error), generation=metadata.get("generation", 1), now=datetime.now(UTC))
        await self._patch(key, status, metadata["resourceVersion"])

    def _forget(self, key: Key) -> None:
        """Drop what is kept of an object that is gone."""
        self._refusals.pop(key, None)
        self._seen.pop(key, None)
        self._written.pop(key, None)
        self._observer.forget(key)
        self._metrics.forget(key)
        for follower in self._followers:
            follower.forget(key)


def _requeue_after_s(plan: Plan, sighting: Sighting) -> float | None:
    """Return when to look again: a poll is not needed where those who are polled tell by themselves."""
    is_poll = plan.requeue_after_s == POLL_S
    after_s = _TOLD_POLL_S if is_poll and sighting.is_told else plan.requeue_after_s
    return _soonest(after_s, _STRANGER_S if sighting.meets_stranger else None)


def _soonest(*times_s: float | None) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def _retry_after_s(outcome: Outcome) -> float | None:
    """Return the longest pause that the API server asked for."""
    asked = [failure.retry_after_s for failure in outcome.failures if isinstance(failure, Unavailable)]
    return max((time_s for time_s in asked if time_s is not None), default=None)
