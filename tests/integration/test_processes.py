"""Real processes, and how they end: with their parent, with their user, and at what stage of their life ever."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing import write_tiny_model
from tools.bootstrap import ROOT, bare_python

WAIT_S = 150.0
EARLIER = (control.WORKER_STATE_UNSPECIFIED, control.WORKER_STATE_STARTING)  # than LOADING
SHORT_FLAGS = ("--max-model-len", "64", "--max-num-seqs", "2", "--max-num-batched-tokens", "32")
LONG_LEN = 16384  # tokens of a stream that takes the engine seconds: it is in its middle whenever the test comes to it


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("random"), max_position_embeddings=LONG_LEN)


def kill_and_watch(worker):
    """Stop the engine, SIGKILL the front; return whether the engine ended: what is stopped ends by the kernel alone."""
    engine = worker.engine()
    ended = os.pidfd_open(engine)
    os.kill(engine, signal.SIGSTOP)
    try:
        worker.process.kill()
        readable, _, _ = select.select([ended], [], [], WAIT_S)
        return bool(readable)
    finally:
        os.close(ended)
        worker.process.wait()


def test_the_engine_of_a_killed_front_is_gone_while_it_serves(start_worker, random_model):
    worker = start_worker(random_model, *SHORT_FLAGS)
    worker.start()
    assert worker.greedy([1, 2, 3], 2)
    assert kill_and_watch(worker)


def test_the_engine_of_a_killed_front_is_gone_in_the_middle_of_loading(start_worker, random_model):
    worker = start_worker(random_model, *SHORT_FLAGS)
    worker.until(lambda status: status.state not in EARLIER)
    assert kill_and_watch(worker)


def test_a_killed_engine_is_replaced_and_says_the_same_after_the_next_agreement(start_worker, random_model):
    worker = start_worker(random_model, *SHORT_FLAGS, "--max-model-len", str(LONG_LEN))
    worker.start()
    before = worker.greedy([1, 2, 3], 8)
    first = worker.engine()
    stream = worker.stream([1, 2, 3], temperature=0, max_tokens=LONG_LEN - 4, ignore_eos=True)
    next(iter(stream))
    os.kill(first, signal.SIGKILL)
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    worker.start()  # waits for the new report
    assert worker.greedy([1, 2, 3], 8) == before
    assert worker.engine() != first


def test_a_killed_engine_comes_back_from_the_spare_which_had_imported_everything(start_worker, random_model):
    worker = start_worker(random_model, *SHORT_FLAGS, "--spare-engine")
    worker.start()
    before = worker.greedy([1, 2, 3], 8)
    engine, spare = worker.engines(2)
    os.kill(engine, signal.SIGKILL)
    worker.until(lambda status: status.engine_failures == 1)
    worker.start()
    assert worker.greedy([1, 2, 3], 8) == before
    assert worker.engines(2)[0] == spare, "it serves, and another one waits"


def test_dormouse_serve_answers_and_ends_with_zero_on_ctrl_c(random_model):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "cli", "worker_image"))}
    command = [bare_python(), "-m", "dormouse_cli", "serve", str(random_model), "--port", "0", "--no-http"]
    with subprocess.Popen(
        [*command, *SHORT_FLAGS, "--served-model-name", "tiny"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            line = process.stdout.readline()
            address = re.search(r"tiny is ready: gRPC on (\S+),", line)[1]
            with grpc.insecure_channel(address) as channel:
                request = pb.GenerateRequest(text="Hello", sampling_params=pb.SamplingParams(max_tokens=5))
                answer = list(rpc.InferenceStub(channel).Generate(request, timeout=60))
            assert answer[-1].usage.completion_tokens > 0
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
            assert process.wait(60) == 0
        finally:
            process.kill()
