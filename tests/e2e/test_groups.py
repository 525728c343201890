"""Replicas of several ranks on the real cluster: in one pod, and in two; they say what one worker says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.kit import Deployments, Model, Models

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

PROMPT = [20, 21, 22, 23]
MAX_TOKENS = 12
SMALL = {"kvCacheMemory": "32Mi"}  # of each rank
FOR_TWO = {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "3Gi"}}  # each rank has its libraries


def said_by(models: Models, name: str) -> list[int]:
    """Return the greedy tokens, [] while the gateway knows no ready worker."""
    return models.answers(name, PROMPT, MAX_TOKENS)


def sleep_and_wake(deployments: Deployments, name: str) -> None:
    """Order a sleep of level 2, check that it is told, and order the wake."""
    deployments.sleep(name, level=2)
    assert deployments.status(name)["kvCache"]["ranks"][0]["residualBytes"] > 0, "of all ranks"
    deployments.wake(name)


def ranks_of(deployments: Deployments, name: str) -> list[tuple[int, str]]:
    """Return each rank and its pod, as the status tells them."""
    return [(rank["rank"], rank["pod"]) for rank in deployments.status(name)["kvCache"]["ranks"]]


def uids_of(deployments: Deployments, name: str) -> set[str]:
    """Return the UIDs of the pods of a deployment."""
    return {pod["metadata"]["uid"] for pod in deployments.pods(name)}


def test_two_ranks_in_one_pod_say_what_one_worker_says_also_after_a_sleep(
    deployments: Deployments, model: Model, model_of: Models, eventually: Callable[..., Any]
) -> None:
    name = deployments.apply("twins", parallelism={"tensor": 2}, engine=SMALL, resources=FOR_TWO)
    deployments.wait(name, "condition=Ready", timeout_s=180)
    expected = model.greedy(PROMPT, MAX_TOKENS)
    assert eventually(lambda: said_by(model_of, name)) == expected
    [pod] = [pod["metadata"]["name"] for pod in deployments.pods(name)]
    assert ranks_of(deployments, name) == [(0, pod), (1, pod)]
    assert deployments.logs(pod).count("2 ranks add up in memory that they share") == 2, "of each rank"
    sleep_and_wake(deployments, name)
    assert eventually(lambda: said_by(model_of, name)) == expected


def test_two_pods_say_what_one_worker_says_also_after_a_sleep_and_begin_anew_together(
    deployments: Deployments, model: Model, model_of: Models, eventually: Callable[..., Any]
) -> None:
    name = deployments.apply("stages", parallelism={"pipeline": 2}, engine=SMALL)
    deployments.wait(name, "condition=Ready", timeout_s=180)
    expected = model.greedy(PROMPT, MAX_TOKENS)
    assert eventually(lambda: said_by(model_of, name)) == expected
    leader, follower = (pod["metadata"]["name"] for pod in deployments.pods(name))
    assert ranks_of(deployments, name) == [(0, leader), (1, follower)]
    sleep_and_wake(deployments, name)
    assert eventually(lambda: said_by(model_of, name)) == expected
    before = uids_of(deployments, name)
    deployments.cluster.kubectl("delete", "pod", follower, "-n", deployments.namespace, "--wait=false")
    eventually(lambda: len(uids_of(deployments, name) - before) == 2, timeout_s=120)
    assert eventually(lambda: said_by(model_of, name), timeout_s=120) == expected
    deployments.wait(name, "condition=Ready")
    assert uids_of(deployments, name) & before == set(), "both pods are new"
