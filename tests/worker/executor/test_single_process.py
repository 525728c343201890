"""The executor of one rank in this process: checks before torch is needed, then the way to the worker."""

import gzip
import os
import subprocess
import sys

import pytest

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import InvalidSettings, ModelNotFound
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.model.testing import write_tiny_model


def make_executor(environ=None, **settings):
    fields = {"model": "/nowhere", "kv_cache_memory_bytes": 1 << 20, "max_num_batched_tokens": 16, "threads": 1}
    return SingleProcessExecutor(EngineSettings(**{**fields, **settings}), {} if environ is None else environ, Host())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"device": "tpu"}, InvalidSettings, "device is 'tpu'; allowed are cpu, cuda"),
        ({"block_size": 0}, InvalidSettings, "block_size is 0"),
        ({"worker_cls": "Worker"}, InvalidSettings, "worker_cls is 'Worker'; the class's qualified name is needed"),
        ({}, ModelNotFound, "/nowhere"),
    ],
)
def test_what_is_wrong_before_loading_is_told_before_anything_heavy(settings, error, message):
    environ: dict[str, str] = {}
    with pytest.raises(error, match=message):
        make_executor(environ, **settings).init_device()
    assert environ == {}


def test_without_a_worker_health_and_end_are_quiet_and_there_is_no_report():
    executor = make_executor()
    executor.check_health()
    executor.shutdown()
    assert executor.get_memory_report() is None


def test_every_verb_reaches_the_worker(tmp_path):
    environ: dict[str, str] = {}
    executor = make_executor(environ, model=str(write_tiny_model(tmp_path)))
    executor.init_device()
    assert (environ["OMP_NUM_THREADS"], environ["HF_HUB_OFFLINE"]) == ("1", "1")
    executor.load_model()
    assert executor.get_model_info().dtype == "float32"
    blocks = executor.determine_num_available_blocks()
    assert executor.get_memory_report().num_gpu_blocks == blocks[0]
    executor.initialize_cache(*blocks)
    executor.check_health()
    assert executor.sleep(2, TAGS).residual_bytes > 0
    executor.wake_up(TAGS)
    executor.shutdown()


@pytest.mark.parametrize("ending", ["stop_profile", "sleep", "shutdown"])
def test_a_profile_is_written_when_it_is_stopped_and_before_a_sleep_or_the_end(tmp_path, ending):
    executor = make_executor(model=str(write_tiny_model(tmp_path / "model")), engine_runtime="torch")
    executor.init_device()
    executor.load_model()
    executor.initialize_cache(*executor.determine_num_available_blocks())
    executor.start_profile(str(tmp_path / "traces"))
    executor.check_health()
    ends = {
        "stop_profile": executor.stop_profile,
        "sleep": lambda: executor.sleep(2, TAGS),
        "shutdown": executor.shutdown,
    }
    ends[ending]()
    trace = tmp_path / "traces" / "rank0-0001.trace.json.gz"
    assert b"aten::sum" in gzip.decompress(trace.read_bytes())
    executor.shutdown()


def test_the_ranks_environment_stands_before_a_worker_class_of_ones_own_is_imported(tmp_path):
    """Its module usually imports torch, which reads the number of threads while it is imported."""
    (tmp_path / "own_early.py").write_text(
        "import os, sys\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ['OMP_NUM_THREADS'], os.environ['HF_HUB_OFFLINE'])\n"
        "from dormouse_worker.executor.worker.cpu_worker import CpuWorker as Worker\n"
    )
    model = write_tiny_model(tmp_path / "model")
    code = (
        "import os\n"
        "from dormouse_worker.executor.single_process import SingleProcessExecutor\n"
        "from dormouse_worker.common.host import Host\n"
        "from dormouse_worker.common.settings import EngineSettings\n"
        f"settings = EngineSettings(model={str(model)!r}, threads=3, worker_cls='own_early.Worker')\n"
        "SingleProcessExecutor(settings, os.environ, Host()).init_device()\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environ, capture_output=True, text=True)
    assert done.stdout == "3 1\n"


def test_an_attention_backend_that_is_not_installed_is_refused_by_name(tmp_path):
    executor = make_executor(model=str(write_tiny_model(tmp_path)), attention_backend="flush")
    with pytest.raises(InvalidSettings, match="attention_backend is 'flush'; known are auto, triton"):
        executor.init_device()


def test_methods_of_an_extension_are_called_by_name_and_answer_by_rank(tmp_path, own_module):
    own_module("own_greeter", "class Greeter:\n    def greet(self, *, name): return f'{name}, {self.rank}'\n")
    model = str(write_tiny_model(tmp_path / "model"))
    executor = make_executor(model=model, worker_extension_cls="own_greeter.Greeter")
    executor.init_device()
    assert executor.collective_rpc("greet", name="Ada") == ["Ada, 0"]


def test_nothing_imports_torch_before_the_device_is_initialized():
    """A worker that cannot start must say so in a tenth of a second."""
    code = (
        "import sys, dormouse_worker.engine_process, dormouse_worker.files.model_files\n"
        "import dormouse_worker.executor.single_process\n"
        "sys.exit(' '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
