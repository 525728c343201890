"""The conductor of one pass over one object: observe → settle and plan → publish → execute.

The status is published before anything is done: what is agreed stands in the status before a worker allocates it.
After an action the object is looked at again at once, so the status that stays is always one that was observed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from dormouse_api import short_names
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Conflict, Forbidden, NotFound, Unavailable
from dormouse_operator.act.event_recorder import record_event
from dormouse_operator.act.execute import Executor, Outcome
from dormouse_operator.act.writes import Authority, Writer
from dormouse_operator.decide import planner, status_throttle
from dormouse_operator.decide.actions import POLL_S, Plan
from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.events import events
from dormouse_operator.decide.findings import Findings, find
from dormouse_operator.decide.release import Release
from dormouse_operator.decide.settle import settle
from dormouse_operator.decide.situation import Situation
from dormouse_operator.decide.status import build_status, rejected_status, status_patch
from dormouse_operator.dropped import dropped_fields
from dormouse_operator.manifests import EventRecord
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import Key
from dormouse_operator.observe.observer import Observation, Observer
from dormouse_operator.observe.refusals import Refusals, hear
from dormouse_operator.parse import SpecError, parse_status
from dormouse_operator.watch.model_names import model_name_of
from dormouse_operator.watch.snapshots import Snapshot

_LOG = logging.getLogger(__name__)

_TOLD_POLL_S = 15.0  # in place of polling where workers tell by themselves: in case they do not
_STRANGER_S = 30.0  # until a name that is somebody else's is tried again
_OUTDATED_S = 60.0  # until a status of which something was lost is written again: nobody tells of another definition
_STALE_S = 0.5  # what is known is newer than what was observed, or told: look again then, if the watch told nothing


class Leader(Authority, Protocol):
    """The right to act, and the way to outrank an earlier holder."""

    async def raise_above(self, epoch: int) -> None:
        """Make the own epoch greater than this one."""
        ...


class PassListener(Protocol):
    """Who wants to know every deployment as it was last observed."""

    def saw(self, situation: Situation) -> None:
        """Take a deployment."""
        ...

    def forget(self, key: Key) -> None:
        """Know that it is gone."""
        ...

    def rejected(self, key: Key, uid: str) -> None:
        """Know that its spec cannot be read: nothing is decided for it, and what it has serves on."""
        ...


class PassFailed(Exception):
    """Something of a pass did not succeed; the next pass tries again, after `retry_after_s` at the earliest."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Take what failed, and when the API server wants to hear of us again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _Published(NamedTuple):
    """What became of the status."""

    again_s: float = 0.0  # it has to be written in so many seconds; 0: it stands
    must_wait: bool = False  # nothing may be done before it is written


class Reconciler:
    """Runs passes. What it keeps in memory can be lost: what was seen, when it wrote, why the last actions failed."""

    def __init__(  # noqa: PLR0913  # the stages, and what goes into what they write
        self,
        writer: Writer,
        observer: Observer,
        executor: Executor,
        *,
        release: Release,
        leader: Leader,
        metrics: Metrics,
        url: str = "",
        reporter: str = "",
        listeners: Sequence[PassListener] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the stages and the release's settings; `url` goes to the status, `reporter` to Events."""
        self._writer = writer
        self._observer = observer
        self._executor = executor
        self._release = release
        self._leader = leader
        self._metrics = metrics
        self._url = url
        self._reporter = reporter
        self._listeners = listeners
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
                observation = await self._observer.observe(snapshot, self._refusals.get(key, Refusals()))
            except SpecError as error:
                await self._reject(key, snapshot, error)
                return None
        return await self._proceed(observation)

    async def _proceed(self, observation: Observation) -> float | None:
        """Settle, plan, publish and execute."""
        with self._metrics.step("plan"):
            situation = settle(observation.observed, observation.questions, self._release)
            for listener in self._listeners:
                listener.saw(situation)
            findings = find(situation)
            plan = planner.plan(situation, findings)
        key = situation.deployment.key
        await self._outrank(situation)
        with self._metrics.step("publish"):
            published = await self._publish(situation, findings, plan, observation.resource_version)
        if published.must_wait:
            return published.again_s
        with self._metrics.step("execute"):
            outcome = await self._executor.execute(situation, plan.actions)
        is_news = self._note(key, outcome)
        if outcome.failures:
            raise PassFailed("; ".join(str(it) for it in outcome.failures), retry_after_s=_retry_after_s(outcome))
        if plan.actions:
            self._observer.refresh(key)
            return outcome.again_after_s
        return _soonest(published.again_s or None, _STALE_S if is_news else None, _requeue_after_s(plan, observation))

    def _note(self, key: Key, outcome: Outcome) -> bool:
        """Remember what was refused, for the conditions of the next pass; return whether that is news."""
        known = self._refusals.get(key, Refusals())
        heard = hear(known, outcome.rejections)
        fresh = Refusals(outcome.refusals, outcome.forbidden, heard, known.dropped)
        self._remember(key, fresh)
        return fresh != known

    def _note_dropped(self, key: Key, dropped: tuple[str, ...]) -> bool:
        """Remember what was lost of the last status, for the next one; return whether that is news."""
        known = self._refusals.get(key, Refusals())
        if known.dropped == dropped:
            return False
        if dropped and all(refusals.dropped != dropped for refusals in self._refusals.values()):
            _LOG.warning("%s and maybe others: the API server does not keep of the status: %s", key, ", ".join(dropped))
        self._remember(key, known._replace(dropped=dropped))
        return True

    def _remember(self, key: Key, refusals: Refusals) -> None:
        if refusals == Refusals():
            self._refusals.pop(key, None)
        else:
            self._refusals[key] = refusals

    async def _outrank(self, situation: Situation) -> None:
        """Make sure that no worker has seen a higher epoch than ours."""
        highest = max((worker.epoch for worker in situation.workers.values()), default=0)
        if highest > self._leader.epoch:
            await self._leader.raise_above(highest)

    async def _publish(self, situation: Situation, findings: Findings, plan: Plan, resource_version: str) -> _Published:
        """Write the status if it changed and its time has come, then tell what happened.

        Before a pod goes because the status does not know it, a write has to prove that this is the present status.
        """
        deployment = situation.deployment
        if deployment.is_deleting:
            return _Published()
        conditions = evaluate_all(situation, findings)
        status = build_status(situation, findings, conditions, url=self._url)
        self._metrics.show(situation, findings, status)
        patch = status_patch(deployment.recorded.raw, status)
        if not patch and not situation.unmade:
            return _Published(_STALE_S if self._note_dropped(deployment.key, ()) else 0.0)
        now, writes = self._monotonic(), self._written.get(deployment.key, ())
        put_off_s = status_throttle.put_off_s(deployment.recorded, status, plan.actions, writes=writes, now=now)
        if put_off_s > 0.0:
            must_wait = bool(situation.unmade) or any(status_throttle.is_command(action) for action in plan.actions)
            return _Published(put_off_s, must_wait=must_wait)
        if not await self._patch(deployment.key, patch, resource_version):
            return _Published(_STALE_S, must_wait=True)
        self._written[deployment.key] = (*writes, now)[-status_throttle.BURST :]
        self._metrics.count_actuation(deployment.recorded, status)
        await self._record(events(situation, findings, conditions), situation)
        is_told = self._refusals.get(deployment.key, Refusals()).dropped == situation.observed.dropped
        return _Published(0.0 if is_told else _STALE_S)

    async def _record(self, happened: Iterable[EventRecord], situation: Situation) -> None:
        """Count what happened, and write it as Events."""
        key, uid, now, reporter = situation.deployment.key, situation.deployment.uid, situation.now, self._reporter
        for event in happened:
            self._metrics.count_event(situation, event)
            await record_event(self._writer, event, key=key, uid=uid, now=now, reporter=reporter)

    async def _patch(self, key: Key, patch: Mapping[str, object], resource_version: str) -> bool:
        """Write the status of the version that was observed; return whether it was still that one."""
        try:
            answer = await self._writer.patch_status(
                INFERENCE_DEPLOYMENTS, *key, patch, resource_version=resource_version
            )
        except (Conflict, NotFound) as error:
            _LOG.info("%s: changed since it was observed: %s", key, error)
            return False
        except Forbidden as error:
            if error.is_missing_right:
                known = self._refusals.get(key, Refusals())
                self._refusals[key] = known._replace(forbidden=str(error))
            raise
        if patch:
            self._note_dropped(key, dropped_fields(patch, answer.get("status") or {}))
        return True

    async def _reject(self, key: Key, snapshot: Snapshot, error: SpecError) -> None:
        """Say in the status what no schema can refuse: a bad cron line, or anything in a cluster without our schema."""
        metadata = snapshot.deployment["metadata"]
        for listener in self._listeners:
            listener.rejected(key, metadata["uid"])
        status = snapshot.deployment.get("status") or {}
        name = short_names.to_status(model_name_of(snapshot.deployment), snapshot.rival)
        recorded = parse_status(status).conditions.get("Accepted")
        said = (recorded.condition.reason, recorded.condition.message) if recorded else None
        if (said, status.get(short_names.FIELD)) == (("InvalidSpec", str(error)), name):
            return
        _LOG.warning("%s: %s", key, error)
        generation, now = metadata.get("generation", 1), datetime.now(UTC)
        rejected = rejected_status(str(error), generation=generation, now=now, model_name=name)
        await self._patch(key, status_patch(status, {**status, **rejected}), metadata["resourceVersion"])

    def _forget(self, key: Key) -> None:
        """Drop what is kept of an object that is gone."""
        self._refusals.pop(key, None)
        self._seen.pop(key, None)
        self._written.pop(key, None)
        self._observer.forget(key)
        self._metrics.forget(key)
        for listener in self._listeners:
            listener.forget(key)


def _requeue_after_s(plan: Plan, observation: Observation) -> float | None:
    """Return when to look again: polls are rare where those who are polled tell by themselves."""
    after_s = plan.requeue.after_s(_TOLD_POLL_S if observation.is_told else POLL_S)
    is_outdated = bool(observation.observed.dropped)
    return _soonest(after_s, _STRANGER_S if observation.meets_stranger else None, _OUTDATED_S if is_outdated else None)


def _soonest(*times_s: float | None) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def _retry_after_s(outcome: Outcome) -> float | None:
    """Return the longest pause that the API server asked for."""
    asked = [failure.retry_after_s for failure in outcome.failures if isinstance(failure, Unavailable)]
    return max((time_s for time_s in asked if time_s is not None), default=None)
