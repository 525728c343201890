"""kill -9 of an engine in each phase of a sleep and a wake: noticed at once, told to all, replaced, serving again."""

from __future__ import annotations

import os
import select
import signal
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH
from tests.integration.frail_worker import DIE
from tests.integration.test_sleep import FLAGS, Code

NOTICED_WITHIN_S = 30.0  # of its end, by the kernel; who waits for a sign of life does so for --engine-timeout
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PROMPT = list(range(20, 50))
NEW = {control.WORKER_STATE_STARTING, control.WORKER_STATE_LOADING, control.WORKER_STATE_PROFILED}  # until it is told
MAX_MODEL_LEN = 4096  # room for an answer that is not at its end when it is looked for
NO_HISTORY = ("--engine-restart-window", "0")  # each death is the first: no test waits for another's


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("random"), max_position_embeddings=MAX_MODEL_LEN)


@pytest.fixture(scope="module")
def mortal(start_worker, model):
    worker = start_worker(model, *FLAGS, *NO_HISTORY, "--max-model-len", str(MAX_MODEL_LEN))
    worker.start()
    return worker


@pytest.fixture(scope="module")
def expected(mortal):
    """What it says before anything happened to it."""
    return mortal.greedy(PROMPT, 8)


def begin(worker, method, **fields):
    """Begin a command; return its future."""
    request = getattr(control, f"{method}Request")(epoch=EPOCH, **fields)
    return getattr(worker.control, method).future(request, timeout=60, metadata=proof(Role.OPERATOR))


def code_of(future):
    """Return the status with which a command ends that cannot succeed."""
    with pytest.raises(grpc.RpcError) as caught:
        future.result()
    return caught.value.code()


def first_health(worker):
    """Return what a watcher of the health is told at once."""
    stub = health_pb2_grpc.HealthStub(worker.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="dormouse.v1.Inference"), timeout=NOTICED_WITHIN_S)
    status = next(watch).status
    watch.cancel()
    return status


@contextmanager
def an_engine_that_dies(worker, expected):
    """In the block the engine dies. The front must notice, refuse a sleep of what is not up, and have a new one serve.

    Yields the engine's pid.
    """
    pid = worker.engine()
    ended = os.pidfd_open(pid)
    try:
        yield pid
        assert select.select([ended], [], [], 60)[0], "the engine lives on"
    finally:
        os.close(ended)
    worker.until(lambda status: status.state in NEW, NOTICED_WITHIN_S)
    assert first_health(worker) == NOT_SERVING
    for method in ("PrepareSleep", "Sleep"):
        assert code_of(begin(worker, method, level=1)) is Code.FAILED_PRECONDITION, f"{method} before it serves"
    for method in ("PrepareWakeUp", "WakeUp"):  # the new engine comes up as they ask
        begin(worker, method).result()
    assert worker.start().sleep_level == 0  # waits for the report of the new engine
    assert worker.greedy(PROMPT, 8) == expected
    assert worker.engine() != pid


def test_killed_while_a_sleep_is_prepared(mortal, expected):
    with an_engine_that_dies(mortal, expected) as pid:
        stream = mortal.stream(PROMPT, temperature=0, max_tokens=4000, ignore_eos=True)
        tokens = list(next(iter(stream)).token_ids)
        os.kill(pid, signal.SIGSTOP)  # what runs cannot end
        preparing = begin(mortal, "PrepareSleep", level=1)
        mortal.until(lambda status: status.state == control.WORKER_STATE_DRAINING)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(grpc.RpcError) as caught:
            tokens += [t for m in stream for t in m.token_ids]
        assert caught.value.code() is Code.UNAVAILABLE
        assert 0 < len(tokens) < 4000
        assert code_of(preparing) is Code.FAILED_PRECONDITION


def test_killed_while_it_gives_its_memory_back(mortal, expected, model):
    with an_engine_that_dies(mortal, expected):
        (model / DIE).write_text("unmap")
        assert code_of(begin(mortal, "Sleep", level=1)) is Code.UNAVAILABLE


def test_killed_asleep_with_a_wake_prepared(mortal, expected):
    with an_engine_that_dies(mortal, expected) as pid:
        assert begin(mortal, "Sleep", level=2).result().state == control.WORKER_STATE_ASLEEP
        assert begin(mortal, "PrepareWakeUp").result().missing_bytes == 0
        os.kill(pid, signal.SIGKILL)


def test_killed_while_its_weights_return(mortal, expected, model):
    with an_engine_that_dies(mortal, expected):
        assert begin(mortal, "Sleep", level=1).result().state == control.WORKER_STATE_ASLEEP
        (model / DIE).write_text("copy")
        assert code_of(begin(mortal, "WakeUp")) is Code.UNAVAILABLE
