"""The engine process as the front sees it: a program that connects to a unix socket and speaks the message protocol."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from dormouse_worker.common.commands import CheckHealth, Shutdown, Sleep, StartProfile, WakeUp
from dormouse_worker.common.exit_codes import EXIT_BROKEN, EXIT_GPU_UNHEALTHY
from dormouse_worker.common.ipc import AbortRequests, AddRequest, Heartbeat, State, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.testing import reference_generate, write_tiny_model
from tests.worker.engine_client import WAIT_S, EngineClient, greedy, make_ready
from tests.worker.failing_worker import QUALIFIED_NAME


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    settings = EngineSettings(
        model=str(model),
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=4,
        kv_cache_memory_bytes=1 << 20,
        threads=1,
    )
    client = EngineClient(settings, tmp_path_factory.mktemp("s") / "engine.sock")
    client.profiled = client.wait_for(State.PROFILED, State.FAILED)
    yield client
    if client.process.poll() is None:
        client.close()


def test_it_reports_what_fits_and_what_it_loaded(engine):
    """The first thing the operator needs of a rank."""
    status = engine.profiled
    assert status.state is State.PROFILED
    assert status.report.num_gpu_blocks == (1 << 20) // status.report.block_bytes
    assert status.report.max_model_len == 128
    assert status.model.dtype == "float32"


def test_one_that_waits_imports_all_that_loading_needs_and_ends_when_nobody_wants_it(model):
    settings = EngineSettings(model=str(model), engine_runtime="torch", threads=1)
    check = (
        "import atexit, sys\nfrom dormouse_worker.engine_process import main\n"
        "heavy = {'transformers.models.llama.modeling_llama', 'dormouse_worker.model.loader'}\n"
        "code = main(['--wait'])\n"
        "import torch\n"
        "print(code, heavy <= set(sys.modules), torch.cuda.is_initialized(), torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], input=msgspec.json.encode(settings) + b"\n", capture_output=True, check=True
    )
    assert done.stdout.split() == [b"0", b"True", b"False", b"1"]


def test_one_that_waits_says_nothing_of_a_model_that_is_not_there(tmp_path):
    """The engine that is started says it."""
    words = msgspec.json.encode(EngineSettings(model=str(tmp_path / "none"))) + b"\n"
    argv = [sys.executable, "-m", "dormouse_worker.engine_process", "--wait"]
    done = subprocess.run(argv, input=words, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


def test_its_tokens_are_those_of_transformers(engine, model):
    """Four prompts at once, longer than one pass, through the socket."""
    make_ready(engine)
    prompts = {str(n): [(i * 31 + n) % 250 for i in range(3 + 9 * n)] for n in range(4)}
    engine.send(*(AddRequest(name, prompt, greedy(12)) for name, prompt in prompts.items()))
    tokens = engine.collect(set(prompts))
    assert tokens == {name: reference_generate(model, prompt, 12) for name, prompt in prompts.items()}


def test_a_request_can_be_aborted_between_steps(engine):
    """The engine looks at its socket while it works."""
    make_ready(engine)
    engine.send(AddRequest("long", [1, 2, 3], greedy(120)), AddRequest("short", [4, 5], greedy(3)))
    engine.collect({"short"})
    engine.send(AbortRequests(["long"]))
    engine.collect({"long"})
    assert engine.finish_reasons == {**engine.finish_reasons, "short": "length", "long": "abort"}


def test_it_sleeps_and_says_the_same_after_waking(engine, model):
    """Level 2 by hand: weights and cache are dropped and come back."""
    make_ready(engine)
    assert engine.command(Sleep(2)).error_reason == ""
    assert engine.command(Sleep(2)).error_reason == ""
    assert engine.command(WakeUp()).error_reason == ""
    engine.send(AddRequest("again", [9, 8, 7], greedy(10)))
    assert engine.collect({"again"})["again"] == reference_generate(model, [9, 8, 7], 10)


def test_an_idle_engine_sends_heartbeats(engine):
    """The front tells a stuck engine from an idle one by them."""
    while not isinstance(engine.receive(), Heartbeat):
        pass


def test_a_missing_model_is_told_and_the_process_stays(tmp_path):
    """What a user must mend is a state, not an exit; and it is known before torch is imported."""
    started_s = time.monotonic()
    client = EngineClient(EngineSettings(model=str(tmp_path / "nowhere")), tmp_path / "engine.sock")
    status = client.wait_for(State.FAILED)
    assert (status.failure_reason, str(tmp_path / "nowhere") in status.failure_message) == ("ModelNotFound", True)
    assert client.command(CheckHealth()).error_reason == ""
    assert client.close() == 0
    assert time.monotonic() - started_s < WAIT_S


def test_it_ends_when_the_front_closes_the_socket(tmp_path):
    """No engine outlives its front."""
    client = EngineClient(EngineSettings(model=str(tmp_path)), tmp_path / "engine.sock")
    client.wait_for(State.FAILED)
    assert client.close() == 0


def test_it_dies_with_its_parent(tmp_path):
    """A front that is killed cannot close anything; here the socket even stays open. The kernel ends the engine."""
    launcher = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    client = EngineClient(EngineSettings(model=str(tmp_path)), tmp_path / "engine.sock", launcher)
    client.wait_for(State.FAILED)
    client.process.kill()
    with pytest.raises(AssertionError, match="closed the connection"):
        client.wait_for(State.READY)
    client.close()


def failing_settings(model):
    """Return the settings of an engine whose forward passes raise."""
    settings = EngineSettings(model=str(model), kv_cache_memory_bytes=1 << 20, block_size=4, threads=1)
    return msgspec.structs.replace(settings, worker_cls=QUALIFIED_NAME)


def test_it_ends_with_a_code_of_its_own_when_two_forward_passes_in_a_row_fail(model, tmp_path):
    settings = failing_settings(model)
    client = EngineClient(settings, tmp_path / "engine.sock")
    client.wait_for(State.PROFILED)
    make_ready(client)
    for name in ("first", "second"):
        client.send(AddRequest(name, [5], greedy(3)))
        while not isinstance(outputs := client.receive(), StepOutputs):
            pass
        assert "the forward pass failed" in outputs.failed[name]
    assert client.process.wait(WAIT_S) == EXIT_BROKEN
    client.close()


def test_an_unfinished_profile_is_written_when_the_front_hangs_up(model, tmp_path):
    sizes = {"kv_cache_memory_bytes": 1 << 20, "block_size": 4, "threads": 1}
    settings = EngineSettings(model=str(model), engine_runtime="torch", **sizes)
    client = EngineClient(settings, tmp_path / "engine.sock")
    client.wait_for(State.PROFILED)
    assert client.command(StartProfile(str(tmp_path / "traces"))).error_reason == ""
    make_ready(client)
    assert client.close() == 0
    [trace] = (tmp_path / "traces").iterdir()
    operations = gzip.decompress(trace.read_bytes())
    assert b"dormouse::forward" in operations or b"aten::mm" in operations  # with our kernels, or without


SICK_GPU = """
import signal, sys
from dormouse_worker.engine_process import main
from dormouse_worker.model.memory.testing_nvml import FakeNvml

nvml = FakeNvml()
signal.signal(signal.SIGUSR1, lambda *_: nvml.xids.append(79))
sys.exit(main(sys.argv[1:], open_gpu=lambda settings: nvml))
"""
GPU_SICK_TO_THE_ENGINE = """
import sys, threading
from dormouse_worker.engine_process import main
from dormouse_worker.model.memory.testing_nvml import FakeNvml

class Nvml(FakeNvml):
    def next_xid(self):
        return 79 if threading.current_thread() is threading.main_thread() else None

sys.exit(main(sys.argv[1:], open_gpu=lambda settings: Nvml()))
"""
SICKER_GPU = """
import sys
from dormouse_worker.engine_process import main
from dormouse_worker.model.memory.gpu_health import GpuLost

def open_gpu(settings):
    raise GpuLost("the driver has lost the GPU")

sys.exit(main(sys.argv[1:], open_gpu=open_gpu))
"""


def test_a_fatal_error_of_the_gpu_ends_it_with_a_code_of_its_own_and_the_number_as_last_word(tmp_path):
    client = EngineClient(EngineSettings(model=str(tmp_path)), tmp_path / "e.sock", program=("-c", SICK_GPU))
    client.wait_for(State.FAILED)
    client.process.send_signal(signal.SIGUSR1)
    assert client.process.wait(WAIT_S) == EXIT_GPU_UNHEALTHY
    assert client.last_words == "Xid 79 on GPU-fake: the GPU has fallen off the bus"
    client.close()


def test_failed_passes_are_the_gpus_fault_when_the_driver_says_so(model, tmp_path):
    """Else a new engine would be started on the same device. The watch's own thread sees nothing here."""
    settings = failing_settings(model)
    client = EngineClient(settings, tmp_path / "e.sock", program=("-c", GPU_SICK_TO_THE_ENGINE))
    client.wait_for(State.PROFILED)
    make_ready(client)
    for name in ("first", "second"):
        client.send(AddRequest(name, [5], greedy(3)))
        while not isinstance(client.receive(), StepOutputs):
            pass
    assert client.process.wait(WAIT_S) == EXIT_GPU_UNHEALTHY
    assert client.last_words.startswith("Xid 79 on GPU-fake")
    client.close()


def test_a_gpu_that_is_lost_from_the_start_ends_it_before_anything_is_loaded(tmp_path):
    client = EngineClient(EngineSettings(model=str(tmp_path)), tmp_path / "e.sock", program=("-c", SICKER_GPU))
    assert client.process.wait(WAIT_S) == EXIT_GPU_UNHEALTHY
    assert client.last_words == "fault on CUDA device 0: the driver has lost the GPU"
    client.close()


def test_a_healthy_gpu_changes_nothing_at_the_end(tmp_path):
    client = EngineClient(EngineSettings(model=str(tmp_path)), tmp_path / "e.sock", program=("-c", SICK_GPU))
    client.wait_for(State.FAILED)
    assert client.close() == 0


def test_a_broken_stream_ends_it(tmp_path):
    """What cannot be decoded is not guessed at."""
    client = EngineClient(EngineSettings(model=str(tmp_path)), tmp_path / "engine.sock")
    client.wait_for(State.FAILED)
    client._connection.sendall(b"\xff\xff\xff\xff")
    assert client.process.wait(WAIT_S) == 1
    client.close()


def test_shutdown_is_answered_and_then_the_process_ends(tmp_path):
    """The polite way."""
    client = EngineClient(EngineSettings(model=str(tmp_path)), tmp_path / "engine.sock")
    client.wait_for(State.FAILED)
    assert client.command(Shutdown()).error_reason == ""
    assert client.process.wait(WAIT_S) == 0
    client.close()
