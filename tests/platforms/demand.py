"""Requests that ask for more replicas than there are, for whoever scales."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from dormouse_api.v1 import inference_pb2 as pb
from tests.e2e.kit import Deployments, Model, wait_until
from tests.install.conftest import Installed, gateway

PER_REPLICA = 2  # unfinished requests that one replica is for
_PROMPT = [20, 21, 22, 23]
_LENGTH = 400


def brings_and_takes_a_replica(installed: Installed, name: str, scale: Callable[[], object]) -> None:
    """Have `scale` scale a model; requests for two replicas bring the second, their end takes it away, none is lost."""
    cluster, deployments = installed.cluster, Deployments(installed.cluster, installed.namespace)
    manifest = deployments.manifest(name, engine={"kvCacheMemory": "64Mi"}, lifecycle={"desiredState": "Active"})
    del manifest["spec"]["replicas"]  # the autoscaler's to write
    cluster.apply(manifest, installed.namespace)
    deployments.wait(name, "condition=Ready", timeout_s=180)
    scale()
    with gateway(installed) as stub, ThreadPoolExecutor(4) as pool:
        is_over = Event()
        lengths = [pool.submit(_ask_until, is_over, Model(stub, name)) for _ in range(2 * PER_REPLICA)]
        try:
            deployments.wait(name, "jsonpath={.status.readyReplicas}=2", timeout_s=180)
        finally:
            is_over.set()
        assert {length for each in lengths for length in each.result()} == {_LENGTH}, "no request was lost"
        wait_until(lambda: len(deployments.pods(name)) == 1, timeout_s=180)
        assert len(Model(stub, name).greedy(_PROMPT, 4)) == 4


def _ask_until(is_over: Event, model: Model) -> list[int]:
    """Ask for _LENGTH tokens again and again until it is over; return how many came each time."""
    sampling = pb.SamplingParams(temperature=0, max_tokens=_LENGTH, ignore_eos=True)
    lengths = []
    while not is_over.is_set():
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=_PROMPT), sampling_params=sampling)
        lengths.append(sum(len(answer.token_ids) for answer in model.generate(request)))
    return lengths
