"""Engines and workers that ended though nobody asked: counted per pod in the status, so that each is told once. Pure.

A worker counts its engines' ends since its container started, the kubelet counts the container's; so an end is not lost
when nobody looked while it happened. What is known of a pod lasts as long as the pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model import Container, Crash, Pod
from dormouse_operator.parse import format_time

CONTAINER_REASON = "WorkerCrashed"
_BY_SIGNAL = 128  # exit codes above are signals
_MAX_WORDS = 600  # of one end, in an Event
_MAX_WRITTEN = 200  # of one end, in the status
_MOST = 1000  # pods, as the schema has it: with more the API server refuses every status


def crashes_of(situation: Situation) -> tuple[Crash, ...]:
    """Return what is known of each pod that is there; those that nothing happened to are left out.

    Of too many the newest stay. What is news and what is written follow this one cut, so that nothing is told twice.
    """
    known = {crash.pod_uid: crash for crash in situation.deployment.recorded.crashes}
    told = (_ends(situation, pod, known.get(pod.uid)) for pod in _pods(situation))
    happened = (crash for crash in told if crash.count or crash.restarts)
    return tuple(sorted(sorted(happened, key=_age)[:_MOST], key=lambda crash: crash.pod))


def news(situation: Situation) -> list[EventRecord]:
    """Return a warning for each pod in which something ended since the recorded status was written."""
    known = {crash.pod_uid: crash.count for crash in situation.deployment.recorded.crashes}
    fresh = ((crash, crash.count - known.get(crash.pod_uid, 0)) for crash in crashes_of(situation))
    return [EventRecord("Warning", crash.reason, _words(crash, times)) for crash, times in fresh if times > 0]


def write(crash: Crash) -> dict[str, Any]:
    """Return a crash as it stands in the status."""
    return {
        "pod": crash.pod,
        "podUID": crash.pod_uid,
        "count": crash.count,
        "engineFailures": crash.engine_failures,
        "containerRestarts": crash.restarts,
        "reason": crash.reason,
        "message": crash.message[:_MAX_WRITTEN],
    } | ({"time": format_time(crash.time)} if crash.time else {})


def end_of(container: Container) -> str:
    """Return how a container ended: code, reason, when, how often, the last line of its log."""
    reason = f" ({container.exit_reason})" if container.exit_reason not in {"", "Error", "Completed"} else ""
    when = f" at {format_time(container.ended)}" if container.ended else ""
    lines = container.exit_message.splitlines()
    is_killed = (container.exit_code or 0) > _BY_SIGNAL  # what it said before has nothing to do with it
    words = f"{'; the last line of its log' if is_killed else ''}: {lines[-1][:300]}" if lines else ""
    return f"exit code {container.exit_code}{reason}{when}, restarted {container.restart_count} times{words}"


def _pods(situation: Situation) -> Iterable[Pod]:
    followers = (pod for pods in situation.observed.followers.values() for pod in pods)
    ours = (pod for pod in (*situation.pods, *followers) if pod.owner_uid == situation.deployment.uid)
    return (pod for pod in ours if not pod.is_deleting)


def _age(crash: Crash) -> tuple[float, str]:
    return (-crash.time.timestamp() if crash.time else 0.0), crash.pod


def _ends(situation: Situation, pod: Pod, known: Crash | None) -> Crash:
    """Add what ended. The look that sees a new container leaves the engines out: the front before may still tell."""
    known = known or Crash(pod=pod.name, pod_uid=pod.uid, count=0)
    counted = _container(situation, pod.container, known)
    return counted if counted.restarts > known.restarts else _engine(situation, pod.container, known)


def _container(situation: Situation, container: Container, known: Crash) -> Crash:
    """Add the ends of the container. One that was asked to end, with code 0, is none."""
    times = container.restart_count - known.restarts
    if times <= 0:
        return known
    counted = replace(known, restarts=container.restart_count, engine_failures=0)  # a new front counts from 0
    if not container.exit_code:
        return counted
    return replace(
        counted,
        count=known.count + times,
        reason=CONTAINER_REASON,
        message=f"the container ended: {end_of(container)}",
        time=container.ended or situation.now,
    )


def _engine(situation: Situation, container: Container, known: Crash) -> Crash:
    """Add the ends of engines, as far as the worker was asked; those before the container started have been added."""
    worker = situation.workers.get(known.pod) or situation.strangers.get(known.pod)
    failure = worker.last_engine_failure if worker else None
    if worker is None or failure is None or worker.engine_failures <= known.engine_failures:
        return known
    if container.started and worker.engine_failed and worker.engine_failed < container.started:
        return known
    return replace(
        known,
        count=known.count + worker.engine_failures - known.engine_failures,
        engine_failures=worker.engine_failures,
        reason=failure.reason,
        message=failure.message[:_MAX_WORDS],
        time=worker.engine_failed,
    )


def _words(crash: Crash, times: int) -> str:
    when = f" at {format_time(crash.time)}" if crash.time else ""
    often = f"; {times} times since it was last looked at" if times > 1 else ""
    total = f"; {crash.count} times in this pod" if crash.count > times else ""
    return f"pod {crash.pod}{when}: {crash.message}{often}{total}"
