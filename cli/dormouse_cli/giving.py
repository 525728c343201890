"""Gives orders and follows them: the effects behind `sleep`, `wake` and `restart`. What is changed decides `orders`."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from dormouse_cli import find, orders
from dormouse_cli.follow import Goal, Waiting, serves, sleeps, wait
from dormouse_cli.lines import last_wake
from dormouse_cli.session import Session
from dormouse_cli.view import ConditionView, DeploymentView
from dormouse_kube.api import INFERENCE_DEPLOYMENTS


async def sleep(session: Session, name: str, *, level: int | None, to_zero: bool, timeout_s: float | None) -> None:
    """Order the sleep; with a time limit wait for it."""
    raw = await find.deployment(session.cluster, session.namespace, name)
    await give(session, name, orders.sleep(raw, level=level, to_zero=to_zero))
    view = await follow(session, name, sleeps, timeout_s)
    if view:
        session.screen.say(f"{view.full_name} is {view.phase}")


async def wake(session: Session, name: str, *, keep_awake: bool, timeout_s: float | None) -> None:
    """Wake it; with a time limit wait until it serves."""
    raw = await find.deployment(session.cluster, session.namespace, name)
    await give(session, name, orders.wake(raw, datetime.now(UTC), keep_awake=keep_awake))
    view = await follow(session, name, serves, timeout_s)
    if view:
        _tell_serving(session, view)


async def restart(session: Session, name: str, *, timeout_s: float | None) -> None:
    """Order new pods; with a time limit wait until they serve."""
    await find.deployment(session.cluster, session.namespace, name)
    await give(session, name, orders.restart(datetime.now(UTC)))
    view = await follow(session, name, serves, timeout_s)
    if view:
        _tell_serving(session, view)


async def canary(session: Session, name: str, *, weight: int | None, paused: bool | None) -> None:
    """Order a canary's share, and tell where it stands."""
    raw = await find.deployment(session.cluster, session.namespace, name)
    order = orders.canary(raw, weight=weight, paused=paused)
    if order.change:
        await give(session, name, order)
        return
    told = (raw.get("status") or {}).get("canary") or {}
    session.screen.say(f"{name}: {told['state']}: {told['message']}" if told else order.words)


async def give(session: Session, name: str, order: orders.Order) -> None:
    """Write the order, unless all is so already."""
    if order.change:
        await session.cluster.patch(INFERENCE_DEPLOYMENTS, session.namespace, name, order.change)
    session.screen.say(order.words if order.change else f"{order.words} (it is so already)")


async def follow(
    session: Session, name: str, goal: Goal, timeout_s: float | None, *, is_new: bool = False
) -> DeploymentView | None:
    """Wait for the goal and tell each condition that changes; None without a time limit: nothing is waited for.

    Of what is new all conditions are told, of what was there before the order only those that change.
    """
    if timeout_s is None:
        return None

    def tell(elapsed_s: float, condition: ConditionView) -> None:
        line = f"[{elapsed_s:6.1f} s] {condition.type} {condition.status}: {condition.reason}: {condition.message}"
        session.screen.say(line, word=condition.type, colour="green" if condition.status == "True" else "yellow")

    waiting = Waiting(goal, timeout_s, tell, time.monotonic, from_scratch=is_new)
    return await wait(session.cluster, session.namespace, name, waiting)


def _tell_serving(session: Session, view: DeploymentView) -> None:
    how = last_wake(view, datetime.now(UTC))
    session.screen.say(
        f"{view.full_name} serves with {view.ready} of {view.replicas} replicas" + (f"; {how}" if how else "")
    )
