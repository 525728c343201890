"""The executor of one rank in this process: checks before torch is needed, then the way to the worker."""

import subprocess
import sys

import pytest

from dormouse_worker.errors import InvalidSettings, ModelNotFound
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.host import Host
from dormouse_worker.ipc import TAGS
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.settings import EngineSettings


def make_executor(environ=None, **settings):
    fields = {"model": "/nowhere", "kv_cache_memory_bytes": 1 << 20, "max_num_batched_tokens": 16, "threads": 1}
    return SingleProcessExecutor(EngineSettings(**{**fields, **settings}), {} if environ is None else environ, Host())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"device": "tpu"}, InvalidSettings, "device is 'tpu'; this version has cpu"),
        ({"block_size": 0}, InvalidSettings, "block_size is 0"),
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


def test_nothing_imports_torch_before_the_device_is_initialized():
    """A worker that can not start must say so in a tenth of a second."""
    code = (
        "import sys, dormouse_worker.engine_process, dormouse_worker.model_files\n"
        "import dormouse_worker.executor.single_process\n"
        "sys.exit(' '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
