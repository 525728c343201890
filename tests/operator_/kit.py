"""What the lives of deployments share: specs, passes of node, workers and operator in turn, who is there and serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dormouse_api.names import LABEL_COMPONENT, LABEL_REVISION
from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState

OLD = {"device": "cpu"}
NEW = {"device": "cpu", "maxNumSeqs": 4}
SWAP = {"strategy": "SleepSwap"}
PAIR = {"pipeline": 2}


def managed(field: str) -> dict[str, Any]:
    """Return what the API server notes of somebody who wrote one field of a spec."""
    return {"fieldsV1": {"f:spec": {field: {}}}}


async def unheard(rig, times: int = 1) -> None:
    """Let the operator make so many passes in which no worker answers."""
    there = rig.workers.workers.copy()
    rig.workers.workers.clear()
    for _ in range(times):
        await rig.reconcile()
    rig.workers.workers.update(there)


def serving(rig) -> list[str]:
    """Return the pods that the Service leads to and that answer."""
    return [
        pod["metadata"]["name"]
        for pod in rig.kube.everything(PODS)
        if {"type": "Ready", "status": "True"} in pod.get("status", {}).get("conditions", [])
        and rig.node.worker_of(pod["metadata"]["name"]).state is WorkerState.READY
    ]


def uids(rig) -> set[str]:
    return {pod["metadata"]["uid"] for pod in rig.kube.everything(PODS)}


def revisions(rig) -> set[str]:
    return {pod["metadata"]["labels"][LABEL_REVISION] for pod in rig.kube.everything(PODS)}


def leaders(rig) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods_of(rig, "worker")]


def followers(rig) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods_of(rig, "follower")]


def pods_of(rig, component: str) -> list[dict[str, Any]]:
    return [pod for pod in rig.kube.everything(PODS) if pod["metadata"]["labels"][LABEL_COMPONENT] == component]


async def come_to_rest(rig, one_pass: Callable[[], Awaitable[float | None]], *, passes: int) -> None:
    """Let half seconds go by until a pass changes nothing and nothing is due; fails after so many."""
    for _ in range(passes):
        version = rig.kube.version
        rig.clock.step(0.5)
        if await one_pass() is None and rig.kube.version == version:
            return
    raise AssertionError(f"not at rest after {passes} passes: {rig.status}")


async def passes(rig, number: int, *, load: bool = True, least: int = 0) -> float | None:
    """Let node, workers and operator act in turn; without `load` no loading ends. At least so many serve after each.

    Returns in how many seconds the last pass wants the next one.
    """
    after_s = None
    for _ in range(number):
        rig.node.tick()
        if load:
            rig.finish_loading()
        after_s = await rig.reconcile()
        assert not least or len(serving(rig)) >= least
    return after_s
