"""A worker with vLLM's engine: our front before it, the real vLLM for processors behind it."""

from __future__ import annotations

import os
import signal

import grpc
import pytest

from bench.peer_env import peer_python, peer_variables
from dormouse_api.capabilities import Capability
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.run import Outcome
from tests.conformance.kit import findings, target
from tests.integration.conftest import Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 240.0  # vLLM is imported and compiles at each start


@pytest.fixture(scope="module")
def vllm_worker(start_worker, tiny_model) -> Worker:
    """A worker whose engine is vLLM's, profiled."""
    wanted = peer_variables(sorted(os.sched_getaffinity(0)), {})
    variables = [f"{name}={text}" for name, text in wanted.items() if name != "VLLM_CPU_KVCACHE_SPACE"]
    flags = ("--runtime", "vllm", "--engine-python", str(peer_python()))
    worker = start_worker(tiny_model, *flags, prefix=("env", *variables))
    worker.until(lambda status: status.state == control.WORKER_STATE_PROFILED, PATIENCE_S)
    return worker


def test_it_keeps_every_rule_of_the_worker_protocol_that_it_claims(vllm_worker):
    found = findings(target(vllm_worker.port, vllm_worker.control_port, PATIENCE_S))
    assert set(vllm_worker.status().capabilities) == {
        Capability.STANDBY,
        Capability.RELAY,
        Capability.PREFIX_CACHE,
    }
    kept = {Outcome.PASSED, Outcome.NOT_CLAIMED}
    assert {one.rule: f"{one.outcome}: {one.seen}" for one in found if one.outcome not in kept} == {}
    assert sum(one.outcome is Outcome.PASSED for one in found) > 50


def test_an_engine_that_is_killed_is_started_again_and_says_the_same(vllm_worker):
    if vllm_worker.status().state != control.WORKER_STATE_READY:
        vllm_worker.start()
    before = vllm_worker.greedy([3, 1, 4, 1, 5], 12)
    stream = vllm_worker.stream([3, 1, 4], max_tokens=400, temperature=0)
    next(stream)
    os.kill(vllm_worker.engine(), signal.SIGKILL)
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    vllm_worker.until(lambda status: status.state == control.WORKER_STATE_PROFILED, PATIENCE_S)
    vllm_worker.start()
    assert vllm_worker.greedy([3, 1, 4, 1, 5], 12) == before
