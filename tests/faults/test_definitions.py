"""Definitions of the resources that are older than the operator, or missing, at a real API server."""

from __future__ import annotations

import yaml

from dormouse_kube.api import GPU_POOLS, Kind
from dormouse_kube.errors import NotFound
from tests.faults.world import World, definitions, install
from tools.bootstrap import ROOT

CRD_KIND = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
CRD = (ROOT / "crds" / "inferencedeployments.yaml").read_text("utf-8")


def without(*fields: str) -> str:
    """Return the definition without these fields of the status."""
    definition = yaml.safe_load(CRD)
    version, *_ = definition["spec"]["versions"]  # the others are made of it: they hold the same schema
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    for field in fields:
        del status[field]
    return yaml.safe_dump(definition)


async def test_an_older_definition_is_told_of_until_it_is_replaced(world: World) -> None:
    """The server drops what it does not know and answers 200; whoever reads the status learns which fields that is."""
    async with world.operator(resync_seconds=1) as operator:
        try:
            await install(world.kube, without("pods", "modelName"))
            await world.apply("a")
            await world.until(lambda: world.condition("a", "Degraded").get("reason") == "DefinitionOutdated")
            assert "status.modelName, status.pods:" in world.condition("a", "Degraded")["message"]
            await world.serves("a")
        finally:
            await install(world.kube, CRD)
        await world.apply("a", replicas=2)
        await world.until(lambda: world.condition("a", "Degraded").get("reason") == "AsExpected")
        # a watch from before the change may still be told of versions without the field
        await world.until(lambda: len(world.status("a").get("pods", ())) == 2)
        assert operator.exit_codes == []


async def test_without_the_definition_of_pools_deployments_are_served_and_pools_are_when_it_comes(world: World) -> None:
    """An upgrade whose definitions somebody applies by hand, and later."""
    pool = {
        "metadata": {"namespace": world.namespace, "name": "gpus"},
        "spec": {"slots": 2, "device": {"claim": {"deviceClassName": "gpu.example.com"}}},
    }

    async def undefined() -> bool:
        return await world.kube.get(CRD_KIND, "", "gpupools.inference.dormouse.dev") is None

    async def recorded() -> list[str]:
        found = await world.kube.get(GPU_POOLS, world.namespace, "gpus") or {}
        return [slot["name"] for slot in found.get("status", {}).get("slots", ())]

    async def made() -> bool:
        try:
            await world.kube.apply(GPU_POOLS, pool, field_manager="user")
        except NotFound:
            return False  # the server takes a moment to serve what was defined
        return True

    try:
        await world.kube.delete(CRD_KIND, "", "gpupools.inference.dormouse.dev")
        await world.eventually(undefined)
        async with world.operator() as operator:
            await world.apply("a")
            await world.serves("a")
            assert "GpuPool is not defined in this cluster" in operator.text()
            await install(world.kube, definitions())
            await world.eventually(made)
            await world.eventually(recorded)
            assert await recorded() == ["gpus-0", "gpus-1"]
            assert operator.exit_codes == []
            await world.serves("a")
    finally:
        await install(world.kube, definitions())
