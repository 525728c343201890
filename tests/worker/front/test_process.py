"""The worker as processes: what it imports, how it ends, and that no engine outlives it."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import environment, proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import worker_control_pb2 as control_pb
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_worker.testing.fake_engine import Script, fake_engine_argv

WAIT_S = 90
PROGRAM = """
import atexit, sys
from dormouse_worker.__main__ import main
atexit.register(lambda: print("HEAVY", sorted({"torch", "transformers", "numpy"} & set(sys.modules)), flush=True))
main(engine_argv=%r)
"""


class Process:
    """A front process with a fake engine process, or the engine that `engine_argv` starts."""

    def __init__(self, model_path, script=None, *flags, engine_argv=None):
        command = [sys.executable, "-c", PROGRAM % (engine_argv or fake_engine_argv(script or Script()),)]
        command += ["--model", str(model_path), "--load-format", "dummy", "--host", "127.0.0.1"]
        for flag in ("--port", "--control-port", "--metrics-port"):
            command += [] if flag in flags else [flag, "0"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        env |= environment()
        self.process = subprocess.Popen(
            [*command, *flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.log = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def until_listening(self):
        """Read the log until the ports stand in it; return them by name."""
        line = self.read_until("event=listening")
        return {name: int(port) for name, port in re.findall(r"(inference|control|http)=(\d+)", line)}

    def read_until(self, words):
        """Read the log until a line has these words; return it."""
        for line in self.process.stderr:
            self.log += line
            if words in line:
                return line
        raise AssertionError(f"the worker ended: {self.log}")

    def end(self, *, timeout_s=WAIT_S):
        """Return the exit code and what was written to standard output."""
        self.log += self.process.stderr.read()  # `communicate` would lose what the reader of lines has read ahead
        out = self.process.stdout.read()
        return self.process.wait(timeout_s), out

    @property
    def policies(self):
        """Return the scheduling policies of its threads, the main one first."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [os.sched_getscheduler(thread) for thread in sorted(int(task.name) for task in threads)]

    @property
    def children(self):
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def operate(port, method, **fields):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = getattr(control_pb, f"{method}Request")(**fields)
        stub = getattr(control_rpc.WorkerControlStub(channel), method)
        return stub(request, metadata=proof(Role.OPERATOR), timeout=WAIT_S, wait_for_ready=True)


def make_ready(ports):
    operate(ports["control"], "DetermineNumAvailableBlocks")
    return operate(ports["control"], "InitializeCache", num_gpu_blocks=40)


def generate(port, text="hello"):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = pb.GenerateRequest(text=text, sampling_params=pb.SamplingParams(max_tokens=5))
        return "".join(m.text for m in inference_rpc.InferenceStub(channel).Generate(request, timeout=WAIT_S))


def test_the_threads_of_grpc_take_no_processor_from_the_event_loop_that_they_wake(model_path):
    with Process(model_path) as worker:
        worker.until_listening()
        main, *others = worker.policies
        assert (main, os.SCHED_BATCH in others) == (os.sched_getscheduler(0), True)
        (engine,) = worker.children
        assert os.sched_getscheduler(engine) == main


def test_it_serves_imports_nothing_heavy_and_ends_with_zero_on_sigterm(model_path):
    with Process(model_path) as worker:
        ports = worker.until_listening()
        assert make_ready(ports).num_gpu_blocks == 40
        assert generate(ports["inference"]) == "hello"
        maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == (0, "HEAVY []\n")
        assert "torch" not in maps
        assert "hello" not in worker.log, "prompts and texts never stand in the log"


def test_sigint_ends_it_as_well(model_path):
    with Process(model_path) as worker:
        worker.until_listening()
        worker.process.send_signal(signal.SIGINT)
        assert worker.end()[0] == 0


def test_an_engine_that_dies_ends_it_with_one_and_its_last_words_stand_in_the_log(model_path):
    with Process(model_path, Script(dies_at="request"), "--max-engine-restarts", "0") as worker:
        ports = worker.until_listening()
        make_ready(ports)
        with pytest.raises(grpc.RpcError) as caught:
            generate(ports["inference"])
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert worker.end()[0] == 1
        assert "exit code 3; its last words: fake engine ends at request" in worker.log


def test_an_engine_that_is_killed_is_started_again_in_the_same_worker(model_path):
    with Process(model_path) as worker:
        ports = worker.until_listening()
        make_ready(ports)
        [first] = worker.children
        os.kill(first, signal.SIGKILL)
        worker.read_until("because=")
        assert make_ready(ports).num_gpu_blocks == 40
        assert generate(ports["inference"]) == "hello"
        assert worker.children not in ([], [first])
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end()[0] == 0
        assert "was killed by signal 9" in worker.log


LOST_GPU = """
import sys
from dormouse_worker.engine_process import main
from dormouse_worker.model.memory.gpu_health import GpuLost

def open_gpu(settings):
    raise GpuLost("the driver has lost the GPU")

sys.exit(main(sys.argv[1:], open_gpu=open_gpu))
"""


@pytest.mark.parametrize("flags", [(), ("--standalone",)])
def test_an_engine_whose_gpu_is_lost_is_told_and_not_started_again(model_path, flags):
    """In a pod the worker stays, so that its status can be read; alone it ends."""
    with Process(model_path, None, *flags, engine_argv=(sys.executable, "-c", LOST_GPU)) as worker:
        ports = worker.until_listening()
        worker.read_until("reason=GPUUnhealthy")
        if flags:
            assert worker.end()[0] == 1
            assert "GPUUnhealthy: fault on CUDA device 0: the driver has lost the GPU" in worker.log
            return
        failure = operate(ports["control"], "GetStatus").failure
        assert (failure.reason, "the driver has lost the GPU" in failure.message) == ("GPUUnhealthy", True)
        assert worker.children == []
        worker.process.terminate()
        assert worker.end()[0] == 0


def test_no_engine_outlives_a_killed_front(model_path):
    with Process(model_path) as worker:
        make_ready(worker.until_listening())
        [engine] = worker.children
        ended = os.pidfd_open(engine)
        worker.process.kill()
        assert select.select([ended], [], [], WAIT_S)[0]
        os.close(ended)


@pytest.mark.parametrize("flag", ["--port", "--control-port", "--metrics-port"])
def test_a_taken_port_is_named_and_the_engine_is_not_left_behind(model_path, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Process(model_path, None, flag, str(port)) as worker:
            code, _ = worker.end()
            assert code == 2
            assert f"{flag} {port}" in worker.log


def test_a_worker_whose_model_is_missing_stays_alive_and_says_so(tmp_path):
    with Process(tmp_path / "nowhere") as worker:
        ports = worker.until_listening()
        status = operate(ports["control"], "GetStatus")
        assert (status.state, status.failure.reason) == (control_pb.WORKER_STATE_FAILED, "ModelNotFound")
        assert worker.children == []
        worker.process.terminate()
        assert worker.end()[0] == 0
