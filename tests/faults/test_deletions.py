"""Objects vanish at the worst moment. F11 of the fault matrix, with the real garbage collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from dormouse_kube.api import EVENTS, INFERENCE_DEPLOYMENTS, PODS, SERVICES, Kind
from tests.faults.control_plane import render_rights
from tests.faults.gate import Call, Gate
from tests.faults.world import World, install
from tools.release import CHART

_NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)


@pytest.fixture(autouse=True)
def controllers(plane) -> None:
    """Start what removes dependents and the contents of namespaces."""
    plane.start_controllers()


async def everything_is_gone(world: World, name: str) -> bool:
    """Return whether neither the deployment nor a child of it is there."""
    selector = f"inference.dormouse.dev/deployment={name}"
    pods = (await world.kube.list(PODS, world.namespace, label_selector=selector)).items
    services = (await world.kube.list(SERVICES, world.namespace, label_selector=selector)).items
    return not world.deployment(name) and not pods and not services


class DeletesAt:
    """Deletes a deployment when the operator's n-th write about it has been done."""

    def __init__(self, world: World, gate: Gate, name: str, number: int) -> None:
        """Arm it."""
        self._world, self._name, self._left = world, name, number
        self.is_done = False
        gate.after = self._after

    async def _after(self, call: Call, _: int) -> None:
        if not call.is_write or call.is_lease or self.is_done:
            return
        self._left -= 1
        if self._left < 0:
            self.is_done = True
            await self._world.delete(self._name)


async def test_a_deployment_that_is_deleted_while_its_children_are_made_leaves_none(world: World) -> None:
    """In the middle of creating, after the first writes: what was made is collected, nothing is made again."""
    async with world.gate() as (gate, url), world.operator(url=url) as operator:
        for number in (0, 2, 4):
            deletion = DeletesAt(world, gate, f"a{number}", number)
            await world.apply(f"a{number}", replicas=2)
            await world.until(lambda deletion=deletion: deletion.is_done)
            gate.reset()
            await world.eventually(lambda number=number: everything_is_gone(world, f"a{number}"))
        await world.apply("b")
        await world.serves("b")
        assert operator.exit_codes == []


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_deployment_may_be_deleted_after_any_write_of_its_start(world: World) -> None:
    """The same at every write, until a start has no more."""
    async with world.gate() as (gate, url), world.operator(url=url) as operator:
        for number in range(100):
            deletion = DeletesAt(world, gate, f"a{number}", number)
            await world.apply(f"a{number}", replicas=2)
            await world.until(lambda deletion=deletion, number=number: deletion.is_done or world.is_ready(f"a{number}"))
            await world.delete(f"a{number}")
            gate.reset()
            await world.eventually(lambda number=number: everything_is_gone(world, f"a{number}"))
            if not deletion.is_done:
                break
        assert number >= 8
        assert operator.exit_codes == []


async def test_nothing_of_ours_holds_a_deletion_up_while_no_operator_runs(world: World) -> None:
    """No finalizer: what was awake, and what slept, goes without us."""
    async with world.operator():
        await world.apply("a")
        await world.apply("b", lifecycle={"desiredState": "Asleep"})
        await world.serves("a")
        await world.until(lambda: world.condition("b", "Asleep").get("status") == "True")
    for name in ("a", "b"):
        await world.delete(name)
        await world.eventually(lambda name=name: everything_is_gone(world, name))


async def test_a_name_that_is_used_again_at_once_gets_children_of_its_own(world: World) -> None:
    """Deleted and created anew within one breath: the old pod is not taken for the new one's."""
    async with world.operator():
        await world.apply("a")
        await world.serves("a")
        old = world.deployment("a")["metadata"]["uid"]
        world.kubelet.starts.clear()
        await world.delete("a")
        await world.apply("a")
        await world.until(lambda: world.deployment("a") and world.deployment("a")["metadata"]["uid"] != old)

        def has_own_children() -> bool:
            owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in world.pods("a")}
            return owners == {world.deployment("a")["metadata"]["uid"]}

        await world.until(has_own_children)
        await world.serves("a")


async def test_a_namespace_that_is_deleted_while_we_create_in_it_ends(world: World, binaries: Path) -> None:
    """Every write into it is refused from then on; it is not held up, and the process lives."""
    home = f"home-of-{world.namespace}"  # where the lease lies
    await world.kube.apply(_NAMESPACES, {"metadata": {"name": home}}, field_manager="tests")
    await install(world.kube, render_rights(binaries / "helm", CHART, home), ("operator-a",))
    async with world.operator(namespace=home) as operator:
        await world.apply("a")
        await world.serves("a")
        await world.apply("b", replicas=2)
        await world.until(lambda: world.pods("b"))
        await world.kube.delete(_NAMESPACES, "", world.namespace)

        async def is_gone() -> bool:
            return await world.kube.get(_NAMESPACES, "", world.namespace) is None

        await world.eventually(is_gone)
        for kind in (INFERENCE_DEPLOYMENTS, PODS, SERVICES, EVENTS):
            assert (await world.kube.list(kind, world.namespace)).items == ()
        assert operator.exit_codes == []
