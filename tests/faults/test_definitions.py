"""A definition of the resource that is older than the operator, at a real API server."""

from __future__ import annotations

import yaml

from tests.faults.world import World, install
from tools.bootstrap import ROOT

CRD = (ROOT / "crds" / "inferencedeployments.yaml").read_text("utf-8")


def without(*fields: str) -> str:
    """Return the definition without these fields of the status."""
    definition = yaml.safe_load(CRD)
    [version] = definition["spec"]["versions"]
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
