"""What an order changes in a resource: pure functions from what is to the merge patch that brings the order about.

docs/concepts/lifecycle.md explains the orders. A merge patch touches only the fields that it names, so the user's own
manifest stays the owner of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.names import ANNOTATION_WAKE
from dormouse_cli.errors import CommandFailed
from dormouse_cli.view import read

Raw = Mapping[str, Any]
ANNOTATION_RESTART = "dormouse.dev/restarted-at"  # on the pods: another value is another pod
ANNOTATION_PREVIOUS = "dormouse.dev/previous-spec"  # on the resource: JSON of the spec before the last `dormouse apply`


@dataclass(frozen=True, slots=True)
class Order:
    """What to change, and what to tell of it. An empty change: it is so already."""

    change: Mapping[str, Any]
    words: str


def sleep(raw: Raw, *, level: int | None, to_zero: bool) -> Order:
    """Return the order to sleep, or to keep no pod. Raises CommandFailed where there is nothing to order."""
    _refuse_off(raw)
    state = "Zero" if to_zero else "Asleep"
    lifecycle: dict[str, Any] = {"desiredState": state}
    if level is not None:
        lifecycle["sleepLevel"] = level
    present = (raw.get("spec") or {}).get("lifecycle") or {}
    changed = {key: value for key, value in lifecycle.items() if present.get(key) != value}
    name = raw["metadata"]["name"]
    words = f"{name} is ordered to {'keep no pod' if to_zero else 'sleep'}; requests are refused until dormouse wake"
    return Order({"spec": {"lifecycle": changed}} if changed else {}, words)


def wake(raw: Raw, now: datetime, *, keep_awake: bool) -> Order:
    """Return what wakes: the end of an order to sleep, and for one that sleeps by itself the wish of a request."""
    _refuse_off(raw)
    view = read(raw)
    wanted = "Active" if keep_awake else _awake_state(view.desired_state)
    change: dict[str, Any] = {}
    if view.desired_state != wanted:
        change["spec"] = {"lifecycle": {"desiredState": wanted}}
    if wanted == "Auto" and not _is_awake(raw):
        change["metadata"] = {"annotations": {ANNOTATION_WAKE: _later(raw, now)}}
    how = "is to serve always" if wanted == "Active" else "is to serve, and may sleep when nobody calls"
    return Order(change, f"{view.name} {how}")


def restart(now: datetime) -> Order:
    """Return the order for new pods of the same spec, rolled out as spec.rollout says."""
    annotations = {ANNOTATION_RESTART: _text(now)}
    return Order({"spec": {"template": {"metadata": {"annotations": annotations}}}}, "new pods are rolled out")


def canary(raw: Raw, *, weight: int | None, paused: bool | None) -> Order:
    """Return the order to a canary; what is None stays. Raises CommandFailed for a deployment that is none."""
    name, spec = raw["metadata"]["name"], (raw.get("spec") or {}).get("canary")
    if not spec:
        raise CommandFailed(f"{name} is no canary: spec.canary.of names the deployment whose requests it shall share")
    wanted = {key: value for key, value in {"weight": weight, "paused": paused}.items() if value is not None}
    changed = {key: value for key, value in wanted.items() if spec.get(key) != value}
    after = {"weight": 0, **spec, **changed}
    share = f"takes {after['weight']} % of the requests of {spec['of']}"
    words = f"{name} is paused: {spec['of']} has all of its requests" if after.get("paused") else f"{name} {share}"
    return Order({"spec": {"canary": changed}} if changed else {}, words)


def _refuse_off(raw: Raw) -> None:
    if (raw.get("spec") or {}).get("replicas", 1) == 0:
        name = raw["metadata"]["name"]
        raise CommandFailed(f"{name} is off: spec.replicas is 0; kubectl scale infd {name} --replicas 1 turns it on")


def _awake_state(desired: str) -> str:
    return desired if desired in {"Auto", "Active"} else "Auto"


def _is_awake(raw: Raw) -> bool:
    """Return whether it serves by itself: no rung of the ladder holds it down."""
    return read(raw).rung in {"", "Active"}


def _later(raw: Raw, now: datetime) -> str:
    """Return the time of the wish: now, but after the sleep that it ends, though our clock may be behind."""
    since = ((raw.get("status") or {}).get("lifecycle") or {}).get("since")
    began = datetime.fromisoformat(since) if since else now
    return _text(max(now, began + timedelta(microseconds=1)))


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
