"""Devices of a ResourceClaim, at a real API server and with the chart's rights."""

from __future__ import annotations

from typing import Any

from dormouse_kube.api import RESOURCE_CLAIMS
from tests.faults.world import World

_CLAIM = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
_ALLOCATED = {"devices": {"results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "n", "device": "gpu-3"}]}}


async def test_the_device_that_was_allocated_stands_in_the_status_of_the_pod_and_its_rank(world: World) -> None:
    """Also one that another operator reads which never saw the allocation."""
    claim: dict[str, Any] = {"metadata": {"name": "gpu-7", "namespace": world.namespace}}
    await world.kube.apply(RESOURCE_CLAIMS, {**claim, "spec": _CLAIM}, field_manager="user")
    told = {**claim, "status": {"allocation": _ALLOCATED}}
    await world.kube.apply(RESOURCE_CLAIMS, told, field_manager="scheduler", subresource="status")
    gpu = {"claims": [{"name": "gpu", "resourceClaimName": "gpu-7"}]}
    spec = {"engine": {"device": "cuda"}, "gpu": gpu, "rollout": {"maxSurge": 0, "maxUnavailable": 1}}

    def devices() -> list[str]:
        rows = [*world.status("a").get("pods", ()), *world.status("a").get("kvCache", {}).get("ranks", ())]
        return [device for row in rows for device in row.get("devices", ())]

    async with world.operator():
        await world.apply("a", **spec)
        await world.serves("a")
        await world.until(lambda: devices() == ["gpu.example.com/n/gpu-3"] * 2)
        [pod] = world.pods("a")
        assert pod["spec"]["resourceClaims"] == gpu["claims"]
        assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    async with world.operator() as operator:  # of the pod before: it need not wait for the lease
        await world.apply("a", **spec, lifecycle={"drainTimeoutSeconds": 61})
        await world.until(lambda: world.is_ready("a"))
        await world.rests(operator)
        assert devices() == ["gpu.example.com/n/gpu-3"] * 2
