"""A GPU's worker on the fake device: which backend computes, and which graphs there are after what."""

import pytest
import torch

from dormouse_worker.errors import InvalidSettings
from dormouse_worker.executor.gpu_worker import GpuWorker
from dormouse_worker.executor.rank_worker import RankWorker
from dormouse_worker.host import Host
from dormouse_worker.ipc import TAGS
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.graphs import graph_sizes
from dormouse_worker.model.memory import DEVICE_FREE_MEMORY, NVML
from dormouse_worker.model.promised_tokens import CudaTokenCopy
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.testing_nvml import FakeNvml
from dormouse_worker.settings import EngineSettings
from tests.gpu.answers import answer
from tests.gpu.fake_worker import FakeGpuWorker, RerunMaker

BLOCK_SIZE, MAX_NUM_SEQS = 4, 6
PROMPTS = [[5, 6, 7], list(range(9)), [1]]


class CountedWorker(FakeGpuWorker):
    """Counts what is recorded."""

    num_recorded = 0

    def make_graph_maker(self):
        """See `RankWorker`."""
        worker = self

        class Maker(RerunMaker):
            def record(self, work):
                worker.num_recorded += 1
                return super().record(work)

        return Maker()


class TimedWorker(FakeGpuWorker):
    """Computes each batch in its own way, as a user's class may."""

    def execute_model(self, batch):
        """See `WorkerBase`."""
        return super().execute_model(batch)


class SelectingWorker(FakeGpuWorker):
    """Selects its backend as every worker does."""

    _select_backend = RankWorker._select_backend


def make_settings(directory, **overrides):
    fields = {"block_size": BLOCK_SIZE, "max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": 32, "threads": 1}
    return EngineSettings(model=str(directory), **{**fields, "kv_cache_memory_bytes": 1 << 20, **overrides})


def start(worker):
    worker.init_device()
    worker.load_model()
    worker.initialize_cache(*worker.determine_num_available_blocks())
    return worker


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def worker(model_directory):
    worker = start(CountedWorker(make_settings(model_directory), 0))
    yield worker
    worker.shutdown()
    assert worker.device.memory.used_bytes == 0


def answers(worker):
    return answer(worker, PROMPTS, 4, block_size=BLOCK_SIZE)


def test_a_graph_is_recorded_for_every_size_and_not_for_the_profile(worker):
    assert worker.num_recorded == len(graph_sizes(MAX_NUM_SEQS)) == worker.recording.num_graphs
    assert worker.recording.seconds > 0


@pytest.mark.parametrize("level", [1, 2])
def test_graphs_outlive_a_sleep_and_compute_the_same(worker, level):
    before, recording = answers(worker), worker.recording
    for _ in range(2):
        worker.sleep(level, TAGS)
        worker.wake_up(TAGS)
        assert answers(worker) == before
    assert worker.recording is recording


def test_another_cache_gets_graphs_of_its_own(worker):
    before, recording = answers(worker), worker.recording
    worker.initialize_cache(20, 0)
    assert worker.recording is not recording
    assert answers(worker) == before


def test_a_backend_that_can_not_be_recorded_gets_no_graphs(model_directory):
    worker = start(SelectingWorker(make_settings(model_directory), 0))
    assert worker.recording is None
    assert len(answers(worker)) == 4
    worker.shutdown()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("triton", "attention_backend is triton, which can not compute this model"),
        ("none", "known are auto, triton, varlen, native, sdpa"),
    ],
)
def test_a_backend_that_can_not_be_is_refused(model_directory, name, words):
    worker = SelectingWorker(make_settings(model_directory, attention_backend=name), 0)
    with pytest.raises(InvalidSettings, match=words):
        start(worker)
    worker.shutdown()
    assert worker.fake.memory.used_bytes == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_worker_says_what_to_do(model_directory):
    worker = GpuWorker(make_settings(model_directory, device="cuda"), 0)
    with pytest.raises(InvalidSettings, match=r"device is cuda, which can not be used: .* set device to cpu"):
        worker.init_device()


class Namespace(Host):
    """A host on which this process has a known id at the driver."""

    def driver_pid(self):
        return 4711


class ShownWorker(GpuWorker):
    """A GPU's worker on the fake device, with an NVML of the test's."""

    def make_device(self):
        self._nvml = FakeNvml()
        return FakeDevice(host=self.host)

    make_graph_maker = RankWorker.make_graph_maker


def test_what_nvml_counts_as_ours_is_what_the_meter_tells(model_directory):
    worker = ShownWorker(make_settings(model_directory), 0, Namespace())
    worker.init_device()
    assert worker.meter.measured_by == DEVICE_FREE_MEMORY
    worker._nvml.memory = {17: 100, 4711: 3 << 30}
    assert (worker.meter.measured_by, worker.meter.own_bytes()) == (NVML, 3 << 30)
    worker._nvml.lost = "the driver has lost the GPU"
    assert worker.meter.measured_by == DEVICE_FREE_MEMORY
    worker.shutdown()


def test_only_a_worker_that_begins_its_batches_itself_runs_ahead(model_directory):
    settings = make_settings(model_directory)
    assert FakeGpuWorker(settings, 0).runs_ahead()
    assert not TimedWorker(settings, 0).runs_ahead()
    assert not FakeGpuWorker(make_settings(model_directory, tensor_parallel_size=2), 0).runs_ahead()
    assert GpuWorker(settings, 0).make_token_copier() is CudaTokenCopy
