"""What the pod that reserves a slot's devices says of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dormouse_operator.parse.values import Raw

TELLER = "tell"  # the container whose last words are the devices
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./:]{0,511}")
_NO_NAMES = frozenset({"all", "none", "void"})  # words of the container runtime


class Told(NamedTuple):
    """The node and the devices of a reservation, or why there are none."""

    node: str
    devices: tuple[str, ...]
    complaint: str = ""


def parse_reservation(pod: Raw) -> Told:
    """Return what a reservation says. One whose pod has ended has nothing."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    if status.get("phase") in {"Failed", "Succeeded"}:
        return Told(
            node, (), f"pod {name} has ended: {status.get('message') or status.get('reason') or 'nobody says why'}"
        )
    if not node:
        scheduled = _named(status.get("conditions"), "type", "PodScheduled")
        words = scheduled.get("message") or ""
        return Told("", (), f"pod {name} has no node{': ' if words else ''}{words}")
    state = _named(status.get("initContainerStatuses"), "name", TELLER).get("state") or {}
    if "terminated" not in state:
        waiting = state.get("waiting") or {}
        words = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
        return Told(node, (), f"pod {name} has not told its devices yet{': ' if words else ''}{words}")
    message = str(state["terminated"].get("message") or "").strip()
    devices = tuple(filter(None, (word.strip() for word in message.split(","))))
    if not devices or any(device in _NO_NAMES or not _NAME.fullmatch(device) for device in devices):
        return Told(node, (), f"pod {name} was told {message[:200]!r} by the device plugin, which names no device")
    return Told(node, devices)


def _named(items: Iterable[Raw] | None, key: str, name: str) -> Raw:
    return next((item for item in items or () if item.get(key) == name), {})
