"""When a changed status is written: at once where somebody waits for it, else at most once a second. Pure.

A start changes the status a dozen times within moments. What is put off is not lost: the pass comes again when its
time has come, and writes what holds then. A wake is never put off, for a request is held until it is there; there are
no more wakes than sleeps, and those take their turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dormouse_operator.decide.actions import Action, WakeUp, WorkerAction
from dormouse_operator.model import RecordedStatus

PERIOD_S = 1.0
BURST = 5  # so many that are due at once may follow each other: as many as a start has. Over time one in a period
_AWAITED = ("Accepted", "Ready", "Asleep", "BlocksAgreed")


def put_off_s(
    before: RecordedStatus, after: Mapping[str, Any], actions: Sequence[Action], *, writes: Sequence[float], now: float
) -> float:
    """Return for how many seconds to put the write off; 0: write now. `writes` are the times of the last ones."""
    if any(isinstance(action, WakeUp) for action in actions):
        return 0.0
    allowed = BURST if is_urgent(before, after, actions) else 1
    recent = sorted(time for time in writes if now - time < allowed * PERIOD_S)
    if len(recent) < allowed:
        return 0.0
    return recent[-allowed] + allowed * PERIOD_S - now


def is_urgent(before: RecordedStatus, after: Mapping[str, Any], actions: Sequence[Action]) -> bool:
    """Return whether somebody waits: for the answer to a spec, for a promise before it is kept, for being served."""
    if any(is_command(action) for action in actions):
        return True
    if before.observed_generation != after.get("observedGeneration"):
        return True
    if _has_swapped(before.raw, after) or _adapters(before.raw) != _adapters(after):
        return True
    conditions = {item["type"]: (item["status"], item["reason"]) for item in after["conditions"]}
    return any(_recorded(before, name) != conditions.get(name) for name in _AWAITED)


def _has_swapped(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether a pod runs another engine than gateways think: no stream may go on there unnoticed."""
    known = {pod["uid"]: pod.get("revision") for pod in before.get("pods") or ()}
    return any(known.get(pod["uid"], pod["revision"]) != pod["revision"] for pod in after.get("pods") or ())


def _adapters(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return by name what gateways and other workers wait for: where an adapter is, and what it has to be."""
    return {each["name"]: (each.get("state", ""), each.get("digest", "")) for each in status.get("adapters") or ()}


def is_command(action: Action) -> bool:
    """Return whether a worker is told to do something: what it is told stands in the status before."""
    return isinstance(action, WorkerAction)


def _recorded(before: RecordedStatus, name: str) -> tuple[str, str] | None:
    found = before.conditions.get(name)
    return (found.condition.status, found.condition.reason) if found else None
