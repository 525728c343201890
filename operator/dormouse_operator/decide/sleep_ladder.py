"""How deep a deployment should sleep now, and when to look again: evidence → rung. Pure, stores nothing.

    Active ──level1After──▶ Level1 ──level2After──▶ Level2 ──level3After──▶ Level3 ──zeroAfter──▶ Zero
       ◀────────────────────── a request, a wake intent, a prewarm ────────────────────────────────┘

All delays are counted from the last request.

What makes it hard: (1) silence is no evidence: while one gateway is not heard of, nothing goes deeper. (2) a request
may arrive at the instant of the decision: what is in flight, what is held, what a worker has taken in since, and any
wake intent that was not there when the rung began, wake. (3) an operator that starts anew knows the status and nothing
else: the rung, since when it holds and since when nothing was asked stand there, and change only with the rung.

What wakes wakes in part: one replica, and more as the load asks for (`awake_replicas`). From Zero only so many get a
pod.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from dormouse_operator.decide.awake_replicas import wanted_awake
from dormouse_operator.decide.prewarm import last_firing, next_firing
from dormouse_operator.decide.sleep_evidence import Evidence
from dormouse_operator.model import Ladder, Lifecycle, Rung
from dormouse_operator.model.ladder import IDLE, LOAD, NEIGHBOUR, PRESSURE, PREWARM, REQUEST

_FOLLOW = timedelta(seconds=5)  # how often the load is looked at while it may ask for more replicas
_LEAVE = timedelta(seconds=1)  # how often one looks whether it can leave, while a neighbour waits
_CLOCKS_DIFFER = timedelta(seconds=60)  # an intent from further ahead tells nothing of when it was written


@dataclass(frozen=True, slots=True)
class Decision:
    """Where the deployment should be (None: awake, and nothing to remember), and when time alone may change that."""

    ladder: Ladder | None = None
    due: datetime | None = None

    @property
    def rung(self) -> Rung:
        """Return the rung."""
        return self.ladder.rung if self.ladder else Rung.ACTIVE

    def num_present(self, replicas: int) -> int:
        """Return how many of so many replicas should have a pod."""
        if self.ladder is None or self.ladder.present is None:
            return 0 if self.rung is Rung.ZERO else replicas
        return min(replicas, self.ladder.present)


def decide(evidence: Evidence) -> Decision:
    """Return where the deployment should be now. Only Auto has a ladder: orders stand over it."""
    if evidence.lifecycle.desired_state != "Auto":
        return Decision()
    if evidence.ladder is None or evidence.ladder.rung is Rung.ACTIVE:
        return _awake(evidence, evidence.ladder)
    if evidence.ladder.rung in evidence.unclaimed:  # decided before its workers were heard
        return _awake(evidence, None)
    reason = reason_to_wake(evidence, evidence.ladder)
    if reason and evidence.turn and evidence.turn.is_held:
        return Decision(evidence.ladder, evidence.now + _FOLLOW)
    if reason:
        woken = _woken(evidence, evidence.ladder, reason)
        return _awake(replace(evidence, ladder=woken, serving_since=None), woken)
    return _asleep(evidence, evidence.ladder)


def reason_to_wake(evidence: Evidence, ladder: Ladder) -> str:
    """Return why a deployment that sleeps should be awake, "" if it should not."""
    activity = evidence.activity
    is_called = activity is not None and (activity.in_flight > 0 or activity.held > 0)
    is_asked = evidence.wake_intent not in {"", ladder.wake_intent}
    if is_called or is_asked or evidence.is_stirred or _was_wanted(evidence, ladder):
        return REQUEST
    fired = last_firing(evidence.lifecycle.prewarm, evidence.now)
    return PREWARM if fired and fired >= ladder.since else ""


def _was_wanted(evidence: Evidence, ladder: Ladder) -> bool:
    """Return whether a request waits, or has waited since the rung began, also where one gateway is not heard of."""
    ago_s = evidence.wanted_ago_s
    return ago_s is not None and (ago_s == 0.0 or evidence.now - timedelta(seconds=ago_s) > ladder.since)


def _woken(evidence: Evidence, ladder: Ladder, reason: str) -> Ladder:
    """Return where a deployment is that was just woken. Pods that are still there stay."""
    is_empty = ladder.rung is Rung.ZERO
    least = max(1, evidence.num_places) if is_empty else 1
    awake = wanted_awake(least, evidence.replicas, evidence.measures, evidence.activity)
    return Ladder(
        rung=Rung.ACTIVE,
        since=evidence.now,
        reason=reason,
        wake_intent=evidence.wake_intent,
        awake=awake,
        present=_present(least if is_empty else ladder.present, awake),
    )


def _present(known: int | None, awake: int | None) -> int | None:
    """Return how many replicas have a pod, given how many had one; None is all."""
    return None if known is None or awake is None else max(known, awake)


def _awake(evidence: Evidence, ladder: Ladder | None) -> Decision:
    """Stay awake, with as many replicas as the load asks for, or leave for the ladder."""
    if ladder is None or ladder.awake is None:
        return _stay_or_leave(evidence, ladder)
    followed = _follow(evidence, ladder, ladder.awake)
    decision = _stay_or_leave(evidence, followed)
    if decision.rung is not Rung.ACTIVE or followed.awake is None or evidence.activity is None:
        return decision
    return replace(decision, due=_earliest(decision.due, evidence.now + _FOLLOW))


def _follow(evidence: Evidence, ladder: Ladder, least: int) -> Ladder:
    """Return the same rung with as many replicas awake as the load asks for; `least` are."""
    awake = wanted_awake(least, evidence.replicas, evidence.measures, evidence.activity)
    if awake == least:
        return ladder
    reason = LOAD if least < evidence.replicas else ladder.reason  # there may just be fewer replicas
    return replace(ladder, awake=awake, present=_present(ladder.present, awake), reason=reason)


def _stay_or_leave(evidence: Evidence, ladder: Ladder | None) -> Decision:
    """Stay awake, or leave: for a neighbour that waits, or as the time has come.

    Who cannot leave for a neighbour yet is looked at again soon: nobody tells when a last request ends.
    """
    if not (evidence.turn and evidence.turn.yields_for):
        return _stay_or_rest(evidence, ladder)
    if left := _leave_for_neighbour(evidence, ladder):
        return left
    decision = _stay_or_rest(evidence, ladder)
    if decision.rung is not Rung.ACTIVE:
        return decision
    return replace(decision, due=_earliest(decision.due, evidence.now + _LEAVE))


def _stay_or_rest(evidence: Evidence, ladder: Ladder | None) -> Decision:
    """Stay awake, or leave for the deepest rung whose time has come."""
    activity, delays = evidence.activity, _delays(evidence)
    if activity is None or not delays:
        return Decision(ladder)
    least = min(delays.values())
    serving_since = evidence.serving_since
    if serving_since is None or activity.outstanding or activity.held or evidence.is_stirred:
        return Decision(ladder, evidence.now + least)
    since = max(serving_since, ladder.since) if ladder else serving_since
    asked = asked_at(evidence.lifecycle, evidence.wake_intent, evidence.now) or since
    idle_since = _whole_second(max(since, evidence.now - timedelta(seconds=activity.quiet_s), asked))
    may_leave = since + timedelta(seconds=evidence.lifecycle.min_active_s)
    due = max(may_leave, idle_since + least)
    if evidence.now < due:
        return Decision(ladder, due)
    return _settle(evidence, idle_since, ladder)


def _leave_for_neighbour(evidence: Evidence, ladder: Ladder | None) -> Decision | None:
    """Leave the GPU to another deployment that is called, or say when; None while somebody calls this one."""
    activity, served, rung = evidence.activity, evidence.serving_since, _rung_at(evidence, Rung.LEVEL1)
    if (
        rung is None
        or activity is None
        or served is None
        or activity.outstanding
        or activity.held
        or evidence.is_stirred
    ):
        return None
    since = max(served, ladder.since) if ladder else served
    if evidence.now < (may_leave := since + timedelta(seconds=evidence.lifecycle.min_active_s)):
        return Decision(ladder, may_leave)
    idle_since = _whole_second(max(since, evidence.now - timedelta(seconds=activity.quiet_s)))
    left = Ladder(rung=rung, since=evidence.now, reason=NEIGHBOUR, idle_since=idle_since)
    return Decision(replace(left, wake_intent=evidence.wake_intent, present=ladder.present if ladder else None))


def _asleep(evidence: Evidence, ladder: Ladder) -> Decision:
    """Stay on the rung, or go deeper once the time has come. Time never makes it shallower."""
    if evidence.pressed_to > ladder.rung.depth and (rung := _rung_at(evidence, list(Rung)[evidence.pressed_to])):
        return _asleep(evidence, replace(ladder, rung=rung, since=evidence.now, reason=PRESSURE))
    delays = _delays(evidence)
    deeper = [
        ladder.idle_since + delays[rung] for rung in delays if rung.depth > ladder.rung.depth and ladder.idle_since
    ]
    if evidence.activity is None or not deeper or ladder.idle_since is None:
        return Decision(ladder, next_firing(evidence.lifecycle.prewarm, evidence.now))
    if evidence.now >= min(deeper):
        return _settle(evidence, ladder.idle_since, ladder)
    return Decision(ladder, _earliest(min(deeper), next_firing(evidence.lifecycle.prewarm, evidence.now)))


def _settle(evidence: Evidence, idle_since: datetime, before: Ladder | None) -> Decision:
    """Go to the deepest rung whose time has come."""
    delays = _delays(evidence)
    reached = max((rung for rung in delays if idle_since + delays[rung] <= evidence.now), key=lambda rung: rung.depth)
    ladder = Ladder(
        rung=reached, since=evidence.now, reason=IDLE, idle_since=idle_since, wake_intent=evidence.wake_intent
    )
    if before and reached is not Rung.ZERO:
        ladder = replace(ladder, present=before.present)
    later = [idle_since + delays[rung] for rung in delays if rung.depth > reached.depth]
    return Decision(ladder, _earliest(*later, next_firing(evidence.lifecycle.prewarm, evidence.now)))


def _rung_at(evidence: Evidence, least: Rung) -> Rung | None:
    """Return the next rung, this or a deeper one, on which workers still are; None where they can be on none."""
    able = (rung for rung in Rung if rung is not Rung.ZERO and rung not in evidence.unclaimed)
    return next((rung for rung in able if rung.depth >= least.depth), None)


def _delays(evidence: Evidence) -> dict[Rung, timedelta]:
    """Return after which silence each rung is due; those that never are, or that workers lack, are missing."""
    lifecycle = evidence.lifecycle
    wanted = {
        Rung.LEVEL1: lifecycle.level1_after_s,
        Rung.LEVEL2: lifecycle.level2_after_s,
        Rung.LEVEL3: lifecycle.level3_after_s,
        Rung.ZERO: lifecycle.zero_after_s,
    }
    return {
        rung: timedelta(seconds=delay_s)
        for rung, delay_s in wanted.items()
        if delay_s is not None and rung not in evidence.unclaimed
    }


def asked_at(lifecycle: Lifecycle, wake_intent: str, now: datetime) -> datetime | None:
    """Return when somebody who is no request last wanted it awake: an intent, a prewarm; None for never."""
    times = (last_firing(lifecycle.prewarm, now), _time_of(wake_intent))
    return max((min(time, now) for time in times if time and time <= now + _CLOCKS_DIFFER), default=None)


def _time_of(intent: str) -> datetime | None:
    """Return when an intent was written, None if it does not tell."""
    try:
        time = datetime.fromisoformat(intent)
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo else None


def _whole_second(time: datetime) -> datetime:
    """Return the time as the status can hold it, never earlier than it is."""
    return time if time.microsecond == 0 else time.replace(microsecond=0) + timedelta(seconds=1)


def _earliest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
