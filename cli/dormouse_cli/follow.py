"""Waiting for an order to be done: what changed is told condition by condition. Pure goals decide what is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from dormouse_cli.cluster import Cluster
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.view import ConditionView, DeploymentView, read
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, Resource
from dormouse_kube.errors import Gone, Unavailable

Goal = Callable[[DeploymentView], bool]
_STEPS = ("Accepted", "Scheduled", "ModelLoaded", "MemoryProfiled", "BlocksAgreed", "CacheAllocated", "Progressing")
_SUMMARIES = {"Ready", "Available"}
_TOLD = (*_STEPS, "Asleep", "SleepVerified", "Ready", "Available", "Degraded")


def serves(view: DeploymentView) -> bool:
    """Return whether every wanted replica serves the present spec."""
    is_settled = view.is_current and view.is_true("Ready") and not view.is_true("Asleep")
    progressing = view.condition("Progressing")
    is_rolled_out = progressing is None or progressing.reason == "Complete"
    return is_settled and is_rolled_out and view.is_true("Available") and view.ready >= view.replicas


def sleeps(view: DeploymentView) -> bool:
    """Return whether the deployment rests as deep as was ordered."""
    if view.desired_state == "Zero":
        return view.is_current and view.phase == "Zero"
    return view.is_current and view.is_true("Asleep")


def settled(view: DeploymentView) -> bool:
    """Return whether the deployment is as its spec wants it: serving, asleep by order, without pods, or off."""
    if view.replicas == 0:
        return view.is_current and view.phase == "Off"
    return sleeps(view) if view.desired_state in {"Asleep", "Zero"} else serves(view) or _rests(view)


def _rests(view: DeploymentView) -> bool:
    """Return whether an Auto deployment went to sleep by itself since."""
    return view.is_current and view.rung not in {"", "Active"} and view.is_true("Ready")


def is_hopeless(view: DeploymentView) -> bool:
    """Return whether only another spec can help."""
    accepted = view.condition("Accepted")
    progressing = view.condition("Progressing")
    is_over = progressing is not None and progressing.status == "False"
    return view.is_current and ((accepted is not None and accepted.status == "False") or is_over)


def news(before: DeploymentView | None, after: DeploymentView) -> Iterator[ConditionView]:
    """Yield the conditions that changed, in the order of the steps. Says nothing of what only begins as not done.

    Ready and Available repeat the reason of the first step that is not done: they are told when they flip.
    """
    for type_ in _TOLD:
        new, old = after.condition(type_), before.condition(type_) if before else None
        if new is None or (old is None and new.status != "True"):
            continue
        if old is None or (old.status != new.status if type_ in _SUMMARIES else _key(old) != _key(new)):
            yield new


def _key(condition: ConditionView) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message


@dataclass(frozen=True, slots=True)
class Waiting:
    """One wait: until when, for what, and who is told."""

    goal: Goal
    timeout_s: float
    tell: Callable[[float, ConditionView], None]  # seconds since the start, what changed
    clock: Callable[[], float]  # monotonic seconds
    pause_s: float = 1.0  # after a watch that broke
    from_scratch: bool = False  # tell also what is so already at the first look


async def wait(cluster: Cluster, namespace: str, name: str, waiting: Waiting) -> DeploymentView:
    """Return the deployment once the goal is reached. Raises CommandFailed: timed out, hopeless, deleted."""
    began = waiting.clock()
    last: DeploymentView | None = None
    try:
        async with asyncio.timeout(waiting.timeout_s):
            async for raw in changes(cluster, namespace, name, pause_s=waiting.pause_s):
                view = read(raw)
                if last is not None or waiting.from_scratch:
                    for condition in news(last, view):
                        waiting.tell(waiting.clock() - began, condition)
                last = view
                if waiting.goal(view):
                    return view
                if is_hopeless(view):
                    raise CommandFailed(_missing(view))
    except TimeoutError as error:
        missing = _missing(last) if last else "nothing was heard of it"
        message = f"not done within {waiting.timeout_s:g} s: {missing}"
        raise CommandFailed(message, code=ExitCode.TIMED_OUT) from error
    raise CommandFailed(f"{namespace}/{name} was deleted meanwhile", code=ExitCode.NOT_FOUND)


def _missing(view: DeploymentView) -> str:
    """Return what stands in the way, and what to do about it."""
    degraded = view.condition("Degraded")
    culprit = degraded if degraded and degraded.status == "True" else view.problem
    if culprit is None:
        return f"{view.full_name} is {view.phase}"
    remedy = f" (what to do: {culprit.remedy})" if culprit.remedy else ""
    return f"{culprit.type} is {culprit.status}: {culprit.reason}: {culprit.message}{remedy}"


async def changes(cluster: Cluster, namespace: str, name: str, *, pause_s: float) -> AsyncIterator[Resource]:
    """Yield the resource as it is and after every change; ends when it is deleted. Goes on after broken watches."""
    while True:
        try:
            listed = await cluster.list(INFERENCE_DEPLOYMENTS, namespace)
            found = next((one for one in listed.items if one["metadata"]["name"] == name), None)
            if found is None:
                return
            yield found
            async for event in cluster.watch(
                INFERENCE_DEPLOYMENTS, namespace, resource_version=listed.resource_version
            ):
                if event.type == "BOOKMARK" or event.object["metadata"]["name"] != name:
                    continue
                if event.type == "DELETED":
                    return
                yield event.object
        except (Gone, Unavailable):
            await asyncio.sleep(pause_s)
