"""A right is taken from the operator while it runs. F10 of the fault matrix."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dormouse_kube.api import Kind
from tests.faults.world import World

ROLES = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
SLOW = [
    ("services", "patch"),
    ("pods", "patch"),
    ("pods", "delete"),
    ("pods", "list"),
    ("pods", "watch"),
    ("events", "create"),
]
SLOW += [("services", "get"), ("services", "list"), ("services", "watch"), ("services", "create")]
SLOW += [("inferencedeployments", "list"), ("inferencedeployments", "watch"), ("inferencedeployments", "get")]
SLOW += [("inferencedeployments/status", "patch")]


@asynccontextmanager
async def without(world: World, resource: str, verb: str) -> Any:
    """Take one verb on one resource from the operator's roles while the context lasts."""
    listed = (await world.kube.list(ROLES, world.namespace)).items
    for role in listed:
        less = {**role, "rules": [_less(rule, resource, verb) for rule in role["rules"]]}
        await world.kube.replace(ROLES, {**less, "rules": [rule for rule in less["rules"] if rule["verbs"]]})
    yield
    for role in listed:
        now = await world.kube.get(ROLES, world.namespace, role["metadata"]["name"])
        assert now
        await world.kube.replace(ROLES, {**now, "rules": role["rules"]})


def _less(rule: dict[str, Any], resource: str, verb: str) -> dict[str, Any]:
    rule = copy.deepcopy(rule)
    if resource in rule["resources"]:
        rule["verbs"] = [one for one in rule["verbs"] if one != verb]
    return rule


async def lets_go_of(world: World, resource: str, verb: str) -> None:
    """Take a right away, give orders that need it, give it back: the process lives, and all is as wanted."""
    async with world.operator(resync_seconds=1) as operator:
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        async with without(world, resource, verb):
            seen = operator.log.stat().st_size
            await world.apply("a", replicas=1)
            await world.apply("b")

            async def has_met_it() -> bool:
                return operator.log.stat().st_size > seen

            await world.eventually(has_met_it)
        await world.serves("a", replicas=1)
        await world.serves("b")
        assert operator.exit_codes == []


def told(world: World, name: str) -> Iterator[str]:
    """Yield the messages of all conditions that tell of a refusal."""
    for condition in world.status(name).get("conditions", ()):
        if condition["type"] == "Degraded" and condition["status"] == "True" and condition["reason"] == "Forbidden":
            yield condition["message"]


@pytest.mark.parametrize(("resource", "verb"), [("pods", "create"), ("pods/status", "patch"), ("services", "patch")])
async def test_a_missing_right_is_named_in_the_status_and_forgotten_once_it_is_back(
    world: World, resource: str, verb: str
) -> None:
    """The condition names verb and resource; nobody has to restart anything."""
    async with world.operator(resync_seconds=1) as operator:
        await world.apply("a")
        await world.serves("a")
        async with without(world, resource, verb):
            await world.apply("b")
            message = await world.until(lambda: next(told(world, "b"), None))
            assert f'"{resource}"' in message or resource in message
            assert verb in message
            assert world.is_ready("a"), "others are unaffected"
        await world.serves("b")
        assert not list(told(world, "b"))
        assert operator.exit_codes == []


@pytest.mark.slow
@pytest.mark.parametrize(("resource", "verb"), SLOW)
async def test_any_right_may_go_and_come_back(world: World, resource: str, verb: str) -> None:
    """The same for each of the others that the chart gives."""
    await lets_go_of(world, resource, verb)
