"""The examples of code of one's own, each run for real: an engine with its worker computes, and says what it should."""

import subprocess
import sys
import time

import pytest

from dormouse_worker.common.commands import Command, InitializeCache, Shutdown
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import CommandRequest, State, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.model.testing import reference_generate, write_tiny_model
from tools.bootstrap import ROOT

EXAMPLES = ROOT / "examples" / "extend"
PROMPT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]


class SmallEngine:
    """A controller over the real executor, without a socket."""

    def __init__(self, model, **settings):
        fields = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "block_size": 4, "kv_cache_memory_bytes": 1 << 20}
        engine_settings = EngineSettings(model=str(model), threads=1, **fields, **settings)
        self.executor = SingleProcessExecutor(engine_settings, {}, Host())
        self.sent = []
        self._controller = Controller(engine_settings, self.executor, send=self.sent.append, clock=time.monotonic)
        self._controller.start()
        assert self._controller.state is State.PROFILED, self.sent[-1]
        self.command(InitializeCache(40))

    def command(self, command: Command):
        self._controller.handle(CommandRequest(1, command))
        assert self.sent[-1].error_reason == "", self.sent[-1]

    def generate(self, prompt, max_tokens):
        """Return the greedy tokens after the prompt, which is longer than one forward pass may be."""
        self._controller.handle(make_add("a", prompt, max_tokens=max_tokens))
        while self._controller.has_work:
            self._controller.step()
        outputs = [output for message in self.sent if isinstance(message, StepOutputs) for output in message.outputs]
        return [token for output in outputs for token in output.token_ids]


@pytest.fixture
def importable(monkeypatch):
    """Let the examples be imported, and be forgotten afterwards."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for name in ("own_worker", "own_extension"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("importable")
def test_the_worker_class_computes_as_the_cpus_does_and_tells_how_fast(tmp_path, caplog):
    model = write_tiny_model(tmp_path)
    engine = SmallEngine(model, worker_cls="own_worker.TimedWorker")
    assert engine.generate(PROMPT, 9) == reference_generate(model, PROMPT, 9)
    with caplog.at_level("INFO"):
        engine.command(Shutdown())
    assert "rank 0 computed" in caplog.text


@pytest.mark.usefixtures("importable")
def test_the_extensions_method_knows_the_worker(tmp_path):
    model = write_tiny_model(tmp_path)
    engine = SmallEngine(model, worker_extension_cls="own_extension.MemoryWords")
    report = engine.executor.get_memory_report()
    [words] = engine.executor.collective_rpc("describe_memory")
    assert words.startswith(f"rank 0 holds {report.weights_bytes} bytes of weights, and {report.num_gpu_blocks} blocks")


@pytest.mark.usefixtures("importable")
def test_both_go_together(tmp_path):
    names = {"worker_cls": "own_worker.TimedWorker", "worker_extension_cls": "own_extension.MemoryWords"}
    executor = SingleProcessExecutor(EngineSettings(model=str(write_tiny_model(tmp_path)), **names), {}, Host())
    executor.init_device()
    assert executor.collective_rpc("describe_memory") == ["rank 0 has not been profiled yet"]


@pytest.fixture
def naive_package(tmp_path, monkeypatch):
    """Build the package's wheel and let it be found as an installed one: a wheel is what pip would unpack."""
    wheels = tmp_path / "wheels"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(command, cwd=EXAMPLES / "naive_attention", check=True, capture_output=True)
    [wheel] = wheels.iterdir()
    monkeypatch.syspath_prepend(wheel)
    yield wheel
    sys.modules.pop("naive_attention", None)


@pytest.mark.usefixtures("naive_package")
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss"])
def test_the_attention_backend_of_the_package_says_what_transformers_says(tmp_path, architecture):
    """Chunks of a prompt, decoding, windows, soft-caps and sinks: all of it through the backend of the package."""
    model = write_tiny_model(tmp_path / "model", architecture)
    engine = SmallEngine(model, attention_backend="naive")
    assert engine.generate(PROMPT, 12) == reference_generate(model, PROMPT, 12)
    import naive_attention

    assert ".whl" in naive_attention.__file__
