"""A changed spec on the real cluster: beside the old pod where there is room, inside it where there is one device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from tests.e2e.kit import Deployments
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

PROMPT = [20, 21, 22, 23]
GPU = "nvidia.com/gpu"


@contextmanager
def asked_all_the_time(model: Any) -> Iterator[list[list[int]]]:
    """Ask the model again and again while the context lasts; every answer is there afterwards, an error is raised."""
    answers: list[list[int]] = []
    has_ended = Event()

    def ask() -> None:
        while not has_ended.is_set():
            answers.append(model.greedy(PROMPT, 12))

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield answers
        finally:
            has_ended.set()
        asking.result()


@pytest.fixture
def one_gpu(cluster: Cluster) -> Iterator[None]:
    """Have the node offer one GPU that is not there: the scheduler counts it, the worker computes on the CPU."""
    node = cluster.kubectl("get", "nodes", "-o", "name").split()[0]

    def patch(operation: dict[str, str]) -> None:
        where = {"path": f"/status/capacity/{GPU.replace('/', '~1')}", **operation}
        cluster.kubectl("patch", node, "--subresource=status", "--type=json", "-p", json.dumps([where]))

    patch({"op": "add", "value": "1"})
    yield
    patch({"op": "remove"})


def uids(deployments: Deployments, name: str) -> list[str]:
    """Return the UIDs of the deployment's pods."""
    return [pod["metadata"]["uid"] for pod in deployments.pods(name)]


def is_complete(deployments: Deployments, name: str, before: str) -> bool:
    """Return whether all pods are of another revision than before."""
    status = deployments.status(name)
    is_new = status["rollout"]["revision"] != before
    return (
        is_new and deployments.condition(name, "Progressing")["reason"] == "Complete" and status["readyReplicas"] == 1
    )


def test_a_changed_spec_rolls_out_while_requests_are_answered(
    deployments: Deployments, model_of: Any, eventually: Any
) -> None:
    name = deployments.apply("rolling", engine={"kvCacheMemory": "64Mi"})
    deployments.wait(name, "condition=Ready")
    expected = eventually(lambda: model_of.answers(name, PROMPT, 12))
    revision, old = deployments.status(name)["rollout"]["revision"], uids(deployments, name)
    with asked_all_the_time(model_of(name)) as answers:
        deployments.patch(name, {"engine": {"maxNumSeqs": 4}})
        eventually(lambda: is_complete(deployments, name, revision), timeout_s=180)
        eventually(lambda: len(uids(deployments, name)) == 1)
        seen = len(answers)
        eventually(lambda: len(answers) > seen)
    assert uids(deployments, name) != old
    assert all(answer == expected for answer in answers)


@pytest.mark.usefixtures("one_gpu")
def test_where_there_is_one_device_the_engine_is_swapped_inside_the_pod(
    deployments: Deployments, model_of: Any, eventually: Any
) -> None:
    resources = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1536Mi", GPU: "1"}}
    name = deployments.apply(
        "swapping", engine={"kvCacheMemory": "64Mi"}, resources=resources, rollout={"strategy": "SleepSwap"}
    )
    deployments.wait(name, "condition=Ready")
    expected = eventually(lambda: model_of.answers(name, PROMPT, 12))
    revision, old = deployments.status(name)["rollout"]["revision"], uids(deployments, name)
    deployments.patch(name, {"engine": {"maxNumSeqs": 4}})
    eventually(lambda: is_complete(deployments, name, revision), timeout_s=180)
    assert uids(deployments, name) == old
    assert eventually(lambda: model_of.answers(name, PROMPT, 12)) == expected
    revision = deployments.status(name)["rollout"]["revision"]
    deployments.patch(name, {"model": {"uri": "pvc://models/not-there"}})
    eventually(lambda: deployments.condition(name, "Progressing").get("status") == "False", timeout_s=180)
    assert uids(deployments, name) == old
    assert eventually(lambda: model_of.answers(name, PROMPT, 12)) == expected, "the old engine serves on"
