"""A pool's recorded slots: entries of status.slots ↔ `Slot`, one the inverse of the other. Pure.

Replicas are written NAME[INDEX], as all of them are of the pool's namespace; times with their fractions of a second.
What somebody else left there never ends in an exception, nor in a slot that looks free: it is Fouled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from dormouse_operator.model import Key
from dormouse_operator.model.pools import Holding, Refusal, Replica, Sleeper, Slot, SlotPhase, WayOut
from dormouse_operator.parse.values import Raw, parse_time

_REPLICA = re.compile(r"(?P<name>[a-z0-9]([-.a-z0-9]*[a-z0-9])?)\[(?P<index>[0-9]{1,9})\]")
_LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)  # for a time that nobody can read: everything is late


def parse_slot(raw: Raw, namespace: str) -> Slot:
    """Return a slot with a name as it was recorded. What cannot be read is Fouled, with the holders that can."""
    try:
        return _parse(raw, namespace)
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError):
        return _fouled(raw, namespace)


def write_slot(slot: Slot, *, node: str = "", devices: Iterable[str] = ()) -> dict[str, Any]:
    """Return the slot as it stands in the status, with what its claim was given. What says nothing is left out."""
    said = {
        "node": node,
        "devices": list(devices),
        "holders": [_write_holding(holding) for holding in slot.holders],
        "leaving": _write_replica(slot.leaving),
        "next": _write_replica(slot.next),
        "wayOut": "" if slot.leaving is None and slot.way_out is WayOut.LEVEL1 else slot.way_out.value,
        "deepening": [_write_replica(replica) for replica in slot.deepening],
        "refusals": [_write_refusal(refusal) for refusal in slot.refusals],
        "sleepers": [_write_sleeper(sleeper) for sleeper in slot.sleepers],
    }
    always = {"name": slot.name, "phase": slot.phase.value, "since": write_time(slot.since), "epoch": slot.epoch}
    return always | {name: value for name, value in said.items() if value}


def write_time(time: datetime) -> str:
    """Return a time with its fraction of a second, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parse(raw: Raw, namespace: str) -> Slot:
    """Return the slot. Raises whatever a mapping of another shape makes of it."""
    return Slot(
        name=raw["name"],
        since=_time(raw["since"]),
        phase=SlotPhase(raw["phase"]),
        holders=tuple(_parse_holding(item, namespace) for item in raw.get("holders") or ()),
        leaving=_parse_replica(raw["leaving"], namespace) if raw.get("leaving") else None,
        next=_parse_replica(raw["next"], namespace) if raw.get("next") else None,
        way_out=WayOut(raw.get("wayOut") or WayOut.LEVEL1),
        deepening=tuple(_parse_replica(item, namespace) for item in raw.get("deepening") or ()),
        epoch=_count(raw.get("epoch") or 0),
        refusals=tuple(_parse_refusal(item, namespace) for item in raw.get("refusals") or ()),
        sleepers=tuple(_parse_sleeper(item, namespace) for item in raw.get("sleepers") or ()),
    )


def _fouled(raw: Raw, namespace: str) -> Slot:
    """Return what is sure of a record that contradicts itself: who may hold memory, by any of its words."""
    held: dict[Replica, datetime] = {}
    for item in _list(raw.get("holders")):
        if isinstance(item, Mapping) and (replica := _readable(item.get("replica"), namespace)):
            held[replica] = _LONG_AGO
    for name in ("leaving", "next"):
        if replica := _readable(raw.get(name), namespace):
            held[replica] = _LONG_AGO
    return Slot(
        name=raw["name"],
        since=_LONG_AGO,
        phase=SlotPhase.FOULED,
        holders=tuple(Holding(replica, since) for replica, since in held.items()),
        way_out=WayOut.POD,
        epoch=raw["epoch"] if _is_count(raw.get("epoch")) else 0,
    )


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _readable(text: object, namespace: str) -> Replica | None:
    is_readable = isinstance(text, str) and _REPLICA.fullmatch(text)
    return _parse_replica(str(text), namespace) if is_readable else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(value: object) -> int:
    """Return a number that counts something. Raises ValueError for another."""
    if not _is_count(value):
        raise ValueError(f"{value!r} counts nothing")
    return cast("int", value)


def _time(text: str) -> datetime:
    """Return a time with a zone. Raises ValueError for none."""
    time = parse_time(text)
    if time is None or time.tzinfo is None:
        raise ValueError(f"{text!r} is no time of the API server")
    return time


def _parse_replica(text: str, namespace: str) -> Replica:
    match = _REPLICA.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no replica")
    return Replica(Key(namespace, match["name"]), int(match["index"]))


def _write_replica(replica: Replica | None) -> str:
    return f"{replica.key.name}[{replica.index}]" if replica else ""


def _parse_holding(raw: Raw, namespace: str) -> Holding:
    return Holding(_parse_replica(raw["replica"], namespace), _time(raw["since"]))


def _write_holding(holding: Holding) -> dict[str, Any]:
    return {"replica": _write_replica(holding.replica), "since": write_time(holding.since)}


def _parse_refusal(raw: Raw, namespace: str) -> Refusal:
    return Refusal(
        replica=_parse_replica(raw["replica"], namespace),
        times=_count(raw["times"]),
        at=_time(raw["at"]),
        reason=str(raw.get("reason", "")),
        missing_bytes=_count(raw.get("missingBytes", 0)),
    )


def _write_refusal(refusal: Refusal) -> dict[str, Any]:
    written = {"replica": _write_replica(refusal.replica), "times": refusal.times, "at": write_time(refusal.at)}
    missing = {"missingBytes": refusal.missing_bytes} if refusal.missing_bytes else {}
    return {**written, "reason": refusal.reason, **missing}


def _parse_sleeper(raw: Raw, namespace: str) -> Sleeper:
    replica = _parse_replica(raw["replica"], namespace)
    return Sleeper(replica=replica, level=_count(raw["level"]), residual_bytes=_count(raw.get("residualBytes", 0)))


def _write_sleeper(sleeper: Sleeper) -> dict[str, Any]:
    residue = {"residualBytes": sleeper.residual_bytes} if sleeper.residual_bytes else {}
    return {"replica": _write_replica(sleeper.replica), "level": sleeper.level, **residue}
