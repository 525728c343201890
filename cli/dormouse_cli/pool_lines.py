"""A pool as lines of text: slots, who holds them, who is next, who sleeps there, who waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dormouse_cli.lines import Line, ago, size
from dormouse_cli.pool_view import STANDBY, PoolView, RefusalView, SleeperView, SlotView, WaiterView, is_bad
from dormouse_cli.view import ConditionView


def summary(view: PoolView) -> Iterator[Line]:
    """Yield one line for the pool, and what asks for somebody."""
    yield from _head(view)
    for condition in view.problems:
        yield from _condition(condition)


def pool_tree(view: PoolView, now: datetime) -> Iterator[Line]:
    """Yield pool → slot → who sleeps there and who did not come, then who waits, then every condition."""
    yield from _head(view)
    for slot in view.slots:
        yield Line(1, _slot(slot, now), word=slot.phase)
        yield from (Line(2, _sleeper(slot, one)) for one in slot.sleepers)
        yield from (Line(2, _refusal(one, now), style="yellow") for one in slot.refusals)
    yield from (Line(1, _waiter(one, now)) for one in view.waiting)
    for condition in view.conditions:
        yield from _condition(condition)


def _head(view: PoolView) -> Iterator[Line]:
    yield Line(0, _pool(view))
    if not view.is_current:
        yield Line(1, "the status is older than the spec: the operator has not looked yet", style="yellow")


def _pool(view: PoolView) -> str:
    gpus = f" of {view.gpus_per_slot} GPUs" if view.gpus_per_slot > 1 else ""
    parts = [
        f"{view.full_name}  {view.num_slots} slots{gpus}",
        "released" if view.is_released else "",
        f"{view.held} held" if view.held is not None else "",
        f"{view.members} members" if view.members is not None else "",
        f"{len(view.waiting)} waiting" if view.waiting else "",
    ]
    return ", ".join(part for part in parts if part)


def _slot(slot: SlotView, now: datetime) -> str:
    """Return where a slot is in handing its devices on."""
    holders = [f"{one.replica} since {ago(one.since, now)}" for one in slot.holders if one.replica != slot.leaving]
    leaving = f"{slot.leaving} leaves by {slot.way_out or 'Level1'}" if slot.leaving else ""
    parts = [
        f"slot {slot.name}  {slot.phase}",
        *holders,
        f"{leaving} since {ago(slot.since, now)}" if leaving else "",
        f"next is {slot.next}" if slot.next else "",
        f"{' and '.join(slot.deepening)} go to standby for it" if slot.deepening else "",
        f"on {slot.node}" if slot.node else "",
        "" if slot.node or slot.devices else "no device yet",
        *slot.devices,
    ]
    return ", ".join(part for part in parts if part)


def _sleeper(slot: SlotView, sleeper: SleeperView) -> str:
    how = "in standby" if sleeper.level == STANDBY else f"asleep at level {sleeper.level}"
    left = f", still holds {size(sleeper.residual_bytes)}" if sleeper.residual_bytes else ""
    return f"{sleeper.replica}  {how}{left}{', is next' if sleeper.replica == slot.next else ''}"


def _refusal(refusal: RefusalView, now: datetime) -> str:
    times = "once" if refusal.times == 1 else f"{refusal.times} times, last"
    missing = f", {size(refusal.missing_bytes)} of device memory were missing" if refusal.missing_bytes else ""
    return f"{refusal.replica} did not come to serve {times} {ago(refusal.at, now)}: {refusal.reason}{missing}"


def _waiter(waiter: WaiterView, now: datetime) -> str:
    wanted = f", wants {waiter.wanted} awake" if waiter.wanted is not None else ""
    return f"waiting: {waiter.name} since {ago(waiter.since, now)}{wanted}"


def _condition(condition: ConditionView) -> Iterator[Line]:
    style = "yellow" if is_bad(condition) else ""
    words = f"{condition.type} is {condition.status}: {condition.reason}: {condition.message}"
    yield Line(1, words, style=style)
    if style and condition.remedy:
        yield Line(1, f"what to do: {condition.remedy}", style=style)
