"""Somebody who may create pods in a namespace makes one that says it is a deployment's, at a real API server."""

from __future__ import annotations

import copy
from typing import Any

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from tests.faults.world import World


def like(pod: Any, name: str) -> dict[str, Any]:
    """Return a pod that looks as this one does: labels, owner, seal, all but its name."""
    kept = ("namespace", "labels", "annotations", "ownerReferences")
    metadata = {key: copy.deepcopy(pod["metadata"][key]) for key in kept}
    worker = {**copy.deepcopy(pod["spec"]["containers"][0]), "image": "thief:1"}
    spec = {"containers": [worker], "readinessGates": pod["spec"]["readinessGates"], "volumes": pod["spec"]["volumes"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "name": name}, "spec": spec}


async def recorded(world: World) -> set[str]:
    """Return the UIDs of the pods that gateways may give requests, as the API server has them now."""
    stored = await world.kube.get(INFERENCE_DEPLOYMENTS, world.namespace, "a")
    assert stored
    return {pod["uid"] for pod in stored["status"]["pods"]}


async def test_a_forged_pod_gets_into_no_status_and_goes_while_the_others_serve(world: World) -> None:
    """Also one that a new operator meets which saw neither made: it knows its own by the status.

    The new process is of the pod before, which need not wait for the lease of the one that was killed.
    """

    async def is_gone(name: str) -> bool:  # asked directly: a copy may not have seen it come yet
        return await world.kube.get(PODS, world.namespace, name) is None

    async with world.operator(resync_seconds=1):
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        mine = {pod["metadata"]["uid"] for pod in world.pods("a")}
        await world.kube.create(PODS, like(world.pods("a")[0], "forged-one"))
        await world.eventually(lambda: is_gone("forged-one"))
        assert await recorded(world) == mine
        assert world.is_ready("a")
    await world.kube.create(PODS, like(world.pods("a")[0], "forged-two"))
    async with world.operator(resync_seconds=1):
        await world.eventually(lambda: is_gone("forged-two"))
        assert await recorded(world) == mine
        await world.until(lambda: {pod["metadata"]["uid"] for pod in world.pods("a")} == mine)
