"""Adapters of a hub on a real cluster: a Secret opens it, and what was fetched needs no hub any more."""

from __future__ import annotations

import pytest

from dormouse_worker.files.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from localkube.spec import NODE_IP
from tests.peft_kit import LOUD, greedy_tokens, make_adapter
from tests.worker.hub_server import HubServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROMPT, MAX_TOKENS = [42, 7, 7, 300], 12
ENGINE = {"enableLora": True, "maxLoras": 2, "maxLoraRank": 8, "maxCpuLoras": 3}
TOKENS = {"hub-reader": "hf_right", "hub-stranger": "hf_wrong"}


@pytest.fixture
def hub(tiny_model, tmp_path):
    """A hub on the node, at the one port that the workers' NetworkPolicy opens."""
    made = make_adapter(tmp_path / "sql", tiny_model, rank=4, loudness=LOUD)
    with HubServer((NODE_IP, 443)) as server:
        server.state.files = {name: (made / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}
        server.state.token = TOKENS["hub-reader"]
        yield server


@pytest.fixture
def tokens_of(tiny_model, tmp_path, hub):
    assert hub.state.files
    return {
        name: greedy_tokens(tiny_model, path, PROMPT, MAX_TOKENS)
        for name, path in (("", None), ("sql", tmp_path / "sql"))
    }


def of_hub(name, secret):
    return {"name": name, "uri": "hf://org/tiny", "tokenSecretRef": {"name": secret}}


def test_an_adapter_of_a_hub_answers_as_peft_does_and_needs_no_hub_to_come_back(
    cluster, deployments, model_of, hub, tokens_of, eventually
):
    for secret, token in TOKENS.items():
        kind = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}}
        cluster.apply({**kind, "stringData": {"token": token}}, deployments.namespace)
    worker = {"name": "worker", "env": [{"name": "HF_ENDPOINT", "value": hub.endpoint}]}
    name = deployments.apply(
        "hubbed",
        engine=ENGINE,
        adapters=[of_hub("hub-sql", "hub-reader"), of_hub("hub-locked", "hub-stranger")],
        template={"spec": {"containers": [worker]}},
    )

    def states():
        return {each["name"]: each["state"] for each in deployments.status(name).get("adapters", ())}

    def check_answers():
        eventually(lambda: model_of.answers("hub-sql", PROMPT, 1))
        assert model_of("hub-sql").greedy(PROMPT, MAX_TOKENS) == tokens_of["sql"]
        assert model_of(name).greedy(PROMPT, MAX_TOKENS) == tokens_of[""]

    deployments.wait(name, "condition=Ready", timeout_s=240)
    eventually(lambda: states() == {"hub-sql": "Loaded", "hub-locked": "Failed"})
    assert "Unauthorized" in model_of.refusal("hub-locked")
    check_answers()
    hub.state.status = 503
    for level in (2, 3):
        deployments.sleep(name, level)
        deployments.wake(name)
        eventually(lambda: states()["hub-sql"] == "Loaded")
        check_answers()
