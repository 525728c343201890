"""A spare pod: the model is at Zero, and the request that wakes it finds a pod in which only an engine has to start."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.kit import Deployments

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

PROMPT = [20, 21, 22, 23]
SOON = {"desiredState": "Auto", "level1AfterSeconds": 1, "zeroAfterSeconds": 2, "minActiveSeconds": 0, "spares": 1}
NEVER = {"level1AfterSeconds": None, "zeroAfterSeconds": None, "minActiveSeconds": 60}


def test_a_request_at_zero_is_answered_by_the_spare_pod_that_waited_there(
    deployments: Deployments, model_of: Any, eventually: Any
) -> None:
    name = deployments.apply("shrew", engine={"kvCacheMemory": "64Mi"}, lifecycle={"desiredState": "Active"})
    deployments.wait(name, "condition=Ready")
    before = eventually(lambda: model_of.answers(name, PROMPT, 12))
    deployments.patch(name, {"lifecycle": SOON})
    deployments.wait(name, "jsonpath={.status.phase}=Zero")
    deployments.wait(name, "jsonpath={.status.spareReplicas}=1")
    deployments.patch(name, {"lifecycle": NEVER})
    [spare] = [pod["metadata"]["uid"] for pod in deployments.pods(name)]
    assert model_of(name).greedy(PROMPT, 12) == before, "one call: it was held, and answered"
    deployments.wait(name, "jsonpath={.status.phase}=Active")
    assert [pod["metadata"]["uid"] for pod in deployments.pods(name)] == [spare]
    assert deployments.status(name)["lastActuation"]["path"] == "level3"
