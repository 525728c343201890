"""Nobody calls and the model goes; somebody calls and it is back, on the real cluster, over gRPC and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.kit import Deployments
from tools.kubectl import Cluster
from tools.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

SOON = {"desiredState": "Auto", "level1AfterSeconds": 1, "level2AfterSeconds": 2, "minActiveSeconds": 0}
NEVER = {"level1AfterSeconds": None, "level2AfterSeconds": None, "zeroAfterSeconds": None}


def test_a_model_that_nobody_calls_sleeps_and_the_first_request_wakes_it_and_is_answered(
    deployments: Deployments, model_of: Any, eventually: Any
) -> None:
    name = deployments.apply("owl", engine={"kvCacheMemory": "64Mi"}, lifecycle={"desiredState": "Active"})
    deployments.wait(name, "condition=Ready")
    before = eventually(lambda: model_of.answers(name, [20, 21, 22, 23], 12))
    deployments.patch(name, {"lifecycle": SOON})
    deployments.wait(name, "jsonpath={.status.lifecycle.rung}=Level2")
    deployments.wait(name, "condition=Asleep")
    deployments.patch(name, {"lifecycle": {**NEVER, "minActiveSeconds": 60}})
    assert model_of(name).greedy([20, 21, 22, 23], 12) == before, "one call: it was held, and answered"
    deployments.wait(name, "jsonpath={.status.phase}=Active")
    actuation = deployments.status(name)["lastActuation"]
    assert (actuation["path"], actuation["reason"]) == ("level2", "request")


def test_a_model_without_any_pod_answers_a_chat_over_http(
    cluster: Cluster, release: Release, deployments: Deployments
) -> None:
    name = deployments.apply("bat", engine={"kvCacheMemory": "64Mi"}, lifecycle={"desiredState": "Active"})
    deployments.wait(name, "condition=Ready")
    deployments.patch(name, {"lifecycle": {**NEVER, **SOON, "level2AfterSeconds": None, "zeroAfterSeconds": 2}})
    deployments.wait(name, "jsonpath={.status.phase}=Zero")
    deployments.patch(name, {"lifecycle": NEVER})
    with cluster.port_forward(release.gateway, 8000, release.namespace) as port:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=180)
        listed = [model.id for model in client.models.list()]
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "What does sleep do?"}], max_tokens=8, temperature=0
        )
    assert name in listed
    assert answer.choices[0].message.content
    deployments.wait(name, "jsonpath={.status.phase}=Active")
    assert deployments.status(name)["lastActuation"]["path"] == "cold"
