"""An InferenceKey on a real cluster: made by the command line, limited over both gateways, and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from tests.e2e.kit import Deployments, Model, dormouse
from tools.kubectl import Cluster
from tools.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PER_DAY = 5  # no minute could end meanwhile


@pytest.fixture
def doors(cluster: Cluster, release: Release) -> Iterator[list[rpc.InferenceStub]]:
    """Each gateway of the release by itself."""
    pods = cluster.list("pods", release.namespace, "app.kubernetes.io/component=gateway")
    with ExitStack() as stack:
        stubs = []
        for pod in pods:
            name = f"pod/{pod['metadata']['name']}"
            port = stack.enter_context(cluster.port_forward(name, 50051, release.namespace))
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
            stubs.append(rpc.InferenceStub(channel))
        assert len(stubs) == 2
        yield stubs


def ask(stub: rpc.InferenceStub, model: str, key: str) -> tuple[str, int]:
    """Ask for a token with a key; return "OK" or the code of the refusal, and how many more requests are allowed."""
    sampling = pb.SamplingParams(temperature=0, max_tokens=1)
    request = pb.GenerateRequest(model=model, token_ids=pb.TokenIds(ids=[5]), sampling_params=sampling)
    call = stub.Generate(request, timeout=90, metadata=[("authorization", f"Bearer {key}")])
    try:
        list(call)
    except grpc.RpcError as error:
        return str(error.code().name), 0
    told = dict(call.trailing_metadata())
    return "OK", int(told.get("x-ratelimit-remaining-requests", 0))


def test_a_keys_limit_holds_over_both_gateways_until_it_is_deleted_and_usage_tells_what_it_took(
    model: Model, shared: Deployments, doors: list[rpc.InferenceStub], eventually: Callable[..., Any]
) -> None:
    cluster, namespace = shared.cluster, shared.namespace
    limits = {"narrow": PER_DAY, "wide": 1000}
    keys = {
        name: dormouse(
            cluster, "keys", "create", name, "-n", namespace, "--model", model.name, "--requests-per-day", str(limit)
        )
        for name, limit in limits.items()
    }

    def asked(name: str) -> list[tuple[str, int]]:
        return [ask(stub, model.name, keys[name]) for stub in doors]

    def is_counted_together() -> bool:
        """Return whether the second gateway knows what the first one let in: the operator counts for both."""
        (first, left), (second, still_left) = asked("wide")
        return (first, second, left - still_left) == ("OK", "OK", 1)

    eventually(is_counted_together)
    answers = [code for _ in range(PER_DAY) for code, _ in asked("narrow")]
    assert answers == ["OK"] * PER_DAY + ["RESOURCE_EXHAUSTED"] * PER_DAY
    assert is_counted_together(), "another key has limits of its own"
    told = f"{namespace}/narrow,{namespace},{namespace}/{model.name},{PER_DAY},"
    eventually(lambda: told in dormouse(cluster, "usage", "-n", namespace))
    cluster.kubectl("delete", "inferencekeys", *keys, "-n", namespace)
    eventually(lambda: [code for code, _ in asked("narrow")] == ["OK", "OK"])  # as nobody's: none is required here
