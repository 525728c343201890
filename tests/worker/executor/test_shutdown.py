"""The end of a worker leaves nothing: no tensor, no mapped weights, no open file, whatever it was doing."""

import gc
from pathlib import Path

import pytest
import torch

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.model.testing import write_tiny_model


@pytest.fixture(scope="module", autouse=True)
def lasting_workers():
    """Let workers freeze and thaw: what they froze must go, too. Then freeze as it was."""
    yield
    gc.collect()
    gc.freeze()


def tensor_bytes():
    """Return the bytes of all tensors that are alive, each storage once."""
    gc.collect()
    gc.unfreeze()  # what is frozen is not listed
    # by its very type: some of torch's objects warn when they are asked what they are, and a compiler's hold no bytes
    tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, torch.nn.Parameter)]
    held = [tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"]
    storages = {storage.data_ptr(): storage.nbytes() for storage in held}
    return sum(storages.values())


def open_files(directory):
    """Return what of the directory is open or mapped in this process."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [name for name in (*links, Path("/proc/self/maps").read_text()) if str(directory) in name]


@pytest.fixture
def model(tmp_path):
    return write_tiny_model(tmp_path / "model")


def start(model):
    sizes = {"kv_cache_memory_bytes": 8 << 20, "max_num_batched_tokens": 16, "threads": 1}
    settings = EngineSettings(model=str(model), engine_runtime="torch", **sizes)
    executor = SingleProcessExecutor(settings, {}, Host())
    executor.init_device()
    return executor


def ready(model):
    executor = start(model)
    executor.load_model()
    executor.initialize_cache(*executor.determine_num_available_blocks())
    return executor


def circular(model):
    """Leave behind, frozen with the worker, what only a collection finds: a model's code may."""
    circle = [torch.zeros(1 << 20)]
    circle.append(circle)
    return ready(model)


def asleep(model):
    executor = ready(model)
    executor.sleep(2, TAGS)
    return executor


def profiling(model):
    executor = ready(model)
    executor.start_profile(str(model.parent / "traces"))
    executor.check_health()
    return executor


def failed(model):
    executor = start(model)
    [weights] = model.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelInvalid):
        executor.load_model()
    return executor


@pytest.fixture(scope="module")
def bytes_of_libraries(tiny_model):
    """Return the bytes of tensors that libraries keep for ever once a worker was there: they are not the worker's."""
    start(tiny_model).shutdown()
    return tensor_bytes()


@pytest.mark.parametrize("begin", [start, ready, circular, asleep, profiling, failed])
def test_nothing_is_left_whatever_it_was_doing(model, begin, bytes_of_libraries):
    executor = begin(model)
    worker = executor._wrapper._worker  # held on to: its tensors must go without it
    executor.shutdown()
    assert tensor_bytes() - bytes_of_libraries < 4096  # constants of libraries; the cache alone has 8 MiB
    assert open_files(model.parent) == []
    worker.shutdown()
    executor.shutdown()
