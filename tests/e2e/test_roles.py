"""Roles on a real cluster: one replica computes long prompts and the other one goes on, over mutual TLS."""

from __future__ import annotations

import pytest

from tests.e2e.kit import wait_until
from tools import reference

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

NUM_PROMPT, NUM_ANSWERED = 200, 24
MANY = 20  # prompts, of which one at least finds its blocks in time, however slow the machine is


def prompt_of(number):
    return [300 + (7 * place + number) % 80 for place in range(NUM_PROMPT)]


def counted(deployments, pod, name):
    """Return a counter of a worker's store."""
    path = f"/api/v1/namespaces/{deployments.namespace}/pods/{pod}:8080/proxy/metrics"
    lines = deployments.cluster.kubectl("get", "--raw", path).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"dormouse_kv_store_{name}"))


def test_a_long_prompt_is_computed_by_one_replica_and_answered_by_the_other(deployments, model_of, tiny_model):
    name = deployments.apply(
        "apart",
        replicas=2,
        roles={"prefill": {"replicas": 1, "minPromptTokens": NUM_PROMPT}},
        engine={"kvStore": {"size": "64Mi"}},
    )
    deployments.wait(name, "condition=Ready", timeout_s=240)
    deployments.wait(name, "jsonpath={.status.readyReplicas}=2", timeout_s=240)
    roles = {pod["role"]: pod["name"] for pod in deployments.status(name)["pods"]}
    assert sorted(roles) == ["decode", "prefill"]
    model = model_of(name)
    wait_until(lambda: model_of.answers(name, [300], 1))
    for number in range(MANY):
        told = model.greedy(prompt_of(number), NUM_ANSWERED)
        assert told == reference.greedy_tokens(tiny_model, prompt_of(number), NUM_ANSWERED)
        if counted(deployments, roles["decode"], "fetched_total"):
            break
    else:
        pytest.fail(f"of {MANY} prompts no block was fetched")
    assert counted(deployments, roles["prefill"], "handed_over_total")
