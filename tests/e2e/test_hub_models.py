"""A model of a hub on a real cluster: the condition says how much of it is there, and then it serves."""

from __future__ import annotations

import re

import pytest

from localkube.spec import NODE_IP
from tests.peft_kit import greedy_tokens
from tests.worker.hub_server import HubServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MIB = 1 << 20
PROMPT, MAX_TOKENS = [42, 7, 7, 300], 8
LARGEST = "NOTES.txt"  # comes last, and no loader reads it


@pytest.fixture
def hub(tiny_model):
    """A hub on the node, at the one port that the workers' NetworkPolicy opens, that stops in its largest file.

    Of what it sent, sockets and one chunk of 10 MiB may not be written.
    """
    with HubServer((NODE_IP, 443)) as server:
        server.state.files = {file.name: file.read_bytes() for file in tiny_model.iterdir() if file.is_file()}
        server.state.files[LARGEST] = bytes(128 * MIB)
        server.state.stall_after[LARGEST] = 90 * MIB
        server.state.goes_on = True
        yield server


def test_a_download_is_told_by_bytes_of_bytes_and_what_came_serves(deployments, model_of, hub, tiny_model, eventually):
    known = {"name": "download", "env": [{"name": "HF_ENDPOINT", "value": hub.endpoint}]}
    name = deployments.apply("fetched", model={"uri": "hf://org/tiny"}, template={"spec": {"initContainers": [known]}})

    def told():
        words = deployments.condition(name, "ModelLoaded").get("message", "")
        return re.search(r"downloads hf://org/tiny at revision main: 0\.(0[789]|10) GiB of 0\.1\d GiB", words)

    eventually(told)
    hub.state.release.set()
    deployments.wait(name, "condition=Ready", timeout_s=240)
    eventually(lambda: model_of.answers(name, PROMPT, 1))
    assert model_of(name).greedy(PROMPT, MAX_TOKENS) == greedy_tokens(tiny_model, None, PROMPT, MAX_TOKENS)
