"""A GPU's worker on the fake device: which backend computes, and which graphs there are after what."""

import pytest
import torch

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import InsufficientMemory, InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.testing_groups import FakeGroupExecutor
from dormouse_worker.executor.worker.gpu_worker import GpuWorker
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.device.accounting import DEVICE_FREE_MEMORY, NVML
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.graphs import graph_sizes
from dormouse_worker.model.memory.testing_nvml import FakeNvml
from dormouse_worker.model.promised_tokens import CudaTokenCopy
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.answers import answer, tokens_of
from tests.gpu.fake_worker import FakeGpuWorker, Rerun, RerunMaker

BLOCK_SIZE, MAX_NUM_SEQS = 4, 6
LINE_BYTES = 300 << 20
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


def all_tokens(worker):
    steps = answers(worker)
    return [tokens_of(steps, number) for number in range(len(PROMPTS))]


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


class Uncapturable:
    """A `GraphMaker` for a model that waits for the device: its `record` raises for the graph of one size."""

    def __init__(self, fails_at, error):
        self._left, self._error = fails_at, error

    def record(self, work):
        work()
        if self._left == 0:
            raise self._error
        self._left -= 1
        return Rerun(work)


class StubbornWorker(FakeGpuWorker):
    """Its decode steps cannot be recorded."""

    fails_at, error = 1, RuntimeError("operation not permitted when stream is capturing")

    def make_graph_maker(self):
        """See `RankWorker`."""
        return Uncapturable(self.fails_at, self.error)


class CrampedWorker(StubbornWorker):
    """The device has no memory for its graphs."""

    error = torch.OutOfMemoryError("CUDA out of memory")


def test_a_model_that_can_not_be_recorded_computes_step_by_step(worker, model_directory, caplog):
    stubborn = start(StubbornWorker(make_settings(model_directory), 0))
    assert stubborn.recording is None
    assert "rank 0 cannot record them: operation not permitted when stream is capturing" in caplog.text
    assert all_tokens(stubborn) == all_tokens(worker)
    stubborn.shutdown()
    assert stubborn.device.memory.used_bytes == 0


def test_graphs_that_lack_memory_are_told_as_a_lack_of_memory(model_directory):
    cramped = CrampedWorker(make_settings(model_directory), 0)
    with pytest.raises(InsufficientMemory, match="CUDA out of memory"):
        start(cramped)
    cramped.shutdown()


def ranks_of(model_directory, *kinds):
    """Return a group of as many ranks, each of its kind, with a cache."""

    def make_worker(settings, rank, *, communicator):
        return kinds[rank](settings, rank, communicator=communicator)

    group = FakeGroupExecutor(model_directory, len(kinds), 1, make_worker, max_num_seqs=MAX_NUM_SEQS)
    group.initialize_cache(16, 0)
    return group


@pytest.mark.parametrize(
    ("kinds", "has_graphs"),
    [((FakeGpuWorker, FakeGpuWorker), True), ((FakeGpuWorker, StubbornWorker), False)],
)
def test_all_ranks_of_a_stage_replay_or_none(worker, model_directory, kinds, has_graphs):
    group = ranks_of(model_directory, *kinds)
    assert [rank.recording is not None for rank in group.workers] == [has_graphs] * 2
    assert all_tokens(group) == all_tokens(worker)
    group.shutdown()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("triton", "attention_backend is triton, which cannot compute this model"),
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
    with pytest.raises(InvalidSettings, match=r"device is cuda, which cannot be used: .* set device to cpu"):
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


class ConnectingWorker(ShownWorker):
    """Its line to the other ranks takes memory of the device that neither arenas nor torch count."""

    def _connect(self):
        self.device.memory.take(LINE_BYTES)
        super()._connect()


def test_what_the_line_to_other_ranks_takes_counts_as_ours(model_directory):
    worker = ConnectingWorker(make_settings(model_directory), 0)
    worker.init_device()
    assert worker.meter.own_bytes() == LINE_BYTES
