"""What is worth an Event: the difference between the recorded status and the one that is about to be written. Pure.

Few, with numbers. Each is told on a flip, so that no repetition tells it twice.
"""

from __future__ import annotations

from dormouse_operator.decide import adapters, canary, crashes
from dormouse_operator.decide.block_agreement import Agreement
from dormouse_operator.decide.conditions import asleep, blocks_agreed, model_loaded, ready, scheduled
from dormouse_operator.decide.conditions.all import Conditions
from dormouse_operator.decide.conditions.verdicts import spare_words
from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.situation import Situation
from dormouse_operator.decide.status import (
    actuation_of,
    is_brought_back,
    is_woken,
    wake_of,
)
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model import Actuation, Rung
from dormouse_operator.model.ladder import PRESSURE


def events(situation: Situation, findings: Findings, conditions: Conditions) -> list[EventRecord]:
    """Return what happened since the recorded status was written."""
    told = (
        _downloading(situation, conditions),
        _regrouped(situation, conditions),
        _agreed(situation, findings.blocks.agreement),
        _serving(situation, conditions),
        _slept(situation, conditions),
        _emptied(situation, conditions),
        _evicted(situation),
        _woke(situation, conditions),
        canary.news(situation),
        _brought_back(situation, actuation_of(situation, findings, conditions)),
    )
    failures = _failures(situation, conditions)
    crashed = [crash for crash in crashes.news(situation) if not any(_repeats(failure, crash) for failure in failures)]
    return [event for event in told if event] + adapters.news(situation) + crashed + failures


def _downloading(situation: Situation, conditions: Conditions) -> EventRecord | None:
    condition, before = conditions[model_loaded.TYPE], situation.deployment.recorded.reason(model_loaded.TYPE)
    is_news = condition.reason == model_loaded.DOWNLOADING != before
    return EventRecord("Normal", condition.reason, condition.message) if is_news else None


def _regrouped(situation: Situation, conditions: Conditions) -> EventRecord | None:
    """Tell that a group ends because it lost a pod: time cures it, so it is no failure, but somebody lost requests."""
    condition, before = conditions[scheduled.TYPE], situation.deployment.recorded.reason(scheduled.TYPE)
    is_news = condition.reason == scheduled.GROUP_BROKEN != before
    return EventRecord("Warning", condition.reason, condition.message) if is_news else None


def _agreed(situation: Situation, agreement: Agreement | None) -> EventRecord | None:
    recorded = situation.deployment.recorded
    known = recorded.kv_cache.num_gpu_blocks if recorded.kv_cache else 0
    is_news = agreement and not (recorded.is_true(blocks_agreed.TYPE) and known == agreement.num_gpu_blocks)
    return EventRecord("Normal", blocks_agreed.TYPE, f"blocks agreed: {agreement}") if is_news else None


def _serving(situation: Situation, conditions: Conditions) -> EventRecord | None:
    condition = conditions[ready.TYPE]
    is_news = condition.reason == "Serving" and not situation.deployment.recorded.is_true(ready.TYPE)
    return EventRecord("Normal", ready.TYPE, condition.message) if is_news else None


def _slept(situation: Situation, conditions: Conditions) -> EventRecord | None:
    condition = conditions[asleep.TYPE]
    is_news = condition.is_true and not situation.deployment.recorded.is_true(asleep.TYPE)
    return EventRecord("Normal", "Slept", condition.message) if is_news else None


def _emptied(situation: Situation, conditions: Conditions) -> EventRecord | None:
    """Tell that there is no pod because nobody calls; that of an order is no news to who gave it."""
    condition = conditions[ready.TYPE]
    is_news = situation.rung is Rung.ZERO and situation.deployment.recorded.reason(ready.TYPE) != condition.reason
    return EventRecord("Normal", "Slept", condition.message) if is_news else None


def _evicted(situation: Situation) -> EventRecord | None:
    """Tell that copies in host memory have to go, when it is decided; of replicas that sleep on, when it is done."""
    ladder, recorded = situation.ladder, situation.deployment.recorded
    if situation.observed.pressure and ladder and ladder.reason == PRESSURE and ladder != recorded.ladder:
        told = situation.observed.pressure
        return EventRecord("Normal", "Evicted", f"goes to sleep level {told.level}: {told.words}")
    spares = [pod for pod in situation.replicas if situation.is_spare(pod)]
    levels = [(recorded.rank_of(pod.name), situation.worker(pod)) for pod in spares]
    deeper = [worker for rank, worker in levels if rank and worker and 0 < rank.sleep_level < worker.sleep_level]
    if not deeper:
        return None
    why = situation.observed.pressure.words if situation.observed.pressure else "host memory was short"
    words = f"{len(deeper)} replicas that sleep went to level {deeper[0].sleep_level}: {why}"
    return EventRecord("Normal", "Evicted", words)


def _brought_back(situation: Situation, actuation: Actuation | None) -> EventRecord | None:
    if actuation is None or actuation.path != "cold" or not is_brought_back(situation):
        return None
    return EventRecord("Normal", "Woke", f"serves after no pod in {actuation.seconds:.2f} s: {actuation.reason}")


def _woke(situation: Situation, conditions: Conditions) -> EventRecord | None:
    if not is_woken(situation, conditions):
        return None
    woken = wake_of(situation)
    words = f"awake from level {woken.level} in {woken.seconds:.2f} s{spare_words(situation)}"
    return EventRecord("Normal", "Woke", words)


def _failures(situation: Situation, conditions: Conditions) -> list[EventRecord]:
    """Return one warning per condition that fails for a new reason, and that does not repeat an earlier one."""
    recorded = situation.deployment.recorded
    first = {condition.reason: condition for condition in reversed(list(conditions.values())) if condition.is_failure}
    news = [condition for condition in first.values() if recorded.reason(condition.type) != condition.reason]
    return [EventRecord("Warning", condition.reason, condition.message) for condition in reversed(news)]


def _repeats(failure: EventRecord, crash: EventRecord) -> bool:
    """Return whether a condition tells of the same end in the same pod."""
    pod = crash.message.removeprefix("pod ").split(maxsplit=1)[0].rstrip(":")
    return failure.reason == crash.reason and f"pod {pod}:" in failure.message
