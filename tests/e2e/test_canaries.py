"""A canary on a cluster: it gets what asks for it, and gets no more once it fails, which everybody can read."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.names import METADATA_CANARY
from dormouse_api.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ALWAYS = ((METADATA_CANARY, "always"),)


def ask(gateway, model):
    """Return the code with which a request that asks for the canary ends."""
    request = pb.GenerateRequest(
        model=model, token_ids=pb.TokenIds(ids=[5]), sampling_params=pb.SamplingParams(max_tokens=1)
    )
    try:
        list(gateway.Generate(request, timeout=60, metadata=ALWAYS))
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_a_canary_that_cannot_start_is_aborted_and_another_try_serves(deployments, gateway, model_of, eventually):
    deployments.apply("old")
    broken = {"uri": "pvc://models/nothing-is-here"}
    deployments.apply("new", model=broken, canary={"of": "old", "weight": 50}, lifecycle={"holdTimeoutSeconds": 1})
    deployments.wait("old", "condition=Ready", timeout_s=240)
    eventually(lambda: model_of.answers("old", [5], 1) or model_of.answers("old", [5], 1))
    told = eventually(lambda: deployments.status("new").get("canary"))
    assert (told["state"], told["message"]) in {
        ("Serving", "gateways give it 50 % of the requests of old"),
        ("Aborted", told["message"]),
    }
    codes = [ask(gateway, "old") for _ in range(6)]
    assert codes.count(grpc.StatusCode.OK) >= 3, codes
    assert codes[-1] is grpc.StatusCode.OK, codes
    aborted = eventually(
        lambda: deployments.status("new")["canary"]["state"] == "Aborted" and deployments.status("new")
    )
    assert "requests failed" in aborted["canary"]["message"]
    assert any("requests failed" in message for message in deployments.events("new"))
    deployments.patch("new", {"model": {"uri": "pvc://models/tiny"}, "canary": {"weight": 0}})
    deployments.wait("new", "condition=Ready", timeout_s=240)
    eventually(lambda: deployments.status("new")["canary"]["state"] == "Serving")
    eventually(lambda: ask(gateway, "old") is grpc.StatusCode.OK)
    assert model_of("old").greedy([5, 80], 4) == model_of("new").greedy([5, 80], 4)
