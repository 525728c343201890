"""The CPU worker on a tiny model: measured memory, allocation, health."""

import pytest
import torch

from dormouse_worker.common.errors import InsufficientMemory, MaxModelLenTooLarge
from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.testing import generate, make_worker, start
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.model.testing import write_tiny_model
from tests.worker.executor.limited_host import LimitedHost

MIB = 1 << 20


@pytest.fixture
def directory(tmp_path):
    return write_tiny_model(tmp_path / "model")


@pytest.fixture
def worker(directory):
    """Return a worker with an allocated cache."""
    worker = make_worker(directory, kv_cache_memory_bytes=MIB)
    start(worker)
    yield worker
    worker.shutdown()


def test_the_report_is_measured_and_adds_up(directory):
    limit = 16 << 30  # half of it is more than the process of the tests has taken by now, in whatever order they run
    worker = make_worker(directory, LimitedHost(limit), gpu_memory_utilization=0.5, swap_space_bytes=10 * 1024)
    worker.load_model()
    assert worker.get_memory_report() is None
    blocks = worker.determine_num_available_blocks()
    report = worker.get_memory_report()
    assert blocks == (report.num_gpu_blocks, report.num_cpu_blocks)
    assert report.block_bytes == 1024
    assert report.num_cpu_blocks == 10
    taken = report.weights_bytes + report.peak_activation_bytes + report.non_torch_bytes
    assert report.kv_cache_bytes == limit // 2 - taken - 10 * 1024
    assert report.num_gpu_blocks == report.kv_cache_bytes // 1024
    assert 100 * MIB < report.non_torch_bytes < limit // 2
    assert report.limited_by == "memory limit 16.00 GiB"


def test_a_larger_batch_has_a_larger_peak(tmp_path):
    """What is called peak activation moves with the batch: it is measured, not a constant."""
    directory = write_tiny_model(tmp_path, intermediate_size=8192, max_position_embeddings=1024)

    def peak(num_tokens):
        worker = make_worker(directory, max_num_batched_tokens=num_tokens, kv_cache_memory_bytes=64 * MIB)
        worker.load_model()
        worker.determine_num_available_blocks()
        worker.shutdown()
        return worker.get_memory_report().peak_activation_bytes

    row_bytes = 8192 * 4  # one intermediate row in float32
    assert peak(2048) - peak(32) > 1500 * row_bytes


class UnprofiledWorker(CpuWorker):
    """Runs no profile."""

    def _run_profile(self, batches):
        raise AssertionError(f"{len(batches)} batches are run, and the profile of the first start holds")


def test_a_second_start_with_a_profile_cache_runs_no_profile(directory, tmp_path):
    overrides = {"kv_cache_memory_bytes": MIB, "profile_cache": str(tmp_path / "cache")}
    first = make_worker(directory, **overrides)
    first.load_model()
    blocks = first.determine_num_available_blocks()
    first.shutdown()
    second = UnprofiledWorker(first.settings, 0)
    second.init_device()
    second.load_model()
    assert second.determine_num_available_blocks() == blocks
    second.initialize_cache(*blocks)
    assert generate(second)
    second.shutdown()


def test_too_little_memory_is_told_with_the_report_kept(directory):
    worker = make_worker(directory, host := LimitedHost(8 << 30))
    worker.load_model()
    host.limit_bytes = 200 * MIB
    with pytest.raises(InsufficientMemory, match=r"200\.0 MiB × gpuMemoryUtilization 0\.9"):
        worker.determine_num_available_blocks()
    assert worker.get_memory_report().num_gpu_blocks == 0


def test_weights_that_the_memory_limit_does_not_hold_are_refused_before_they_are_read(directory):
    worker = make_worker(directory, LimitedHost(200 * MIB))
    with pytest.raises(InsufficientMemory, match="the weights take"):
        worker.load_model()


def test_a_model_length_above_the_blocks_is_told_with_both_numbers(directory):
    worker = make_worker(directory, kv_cache_memory_bytes=31 * 1024)
    worker.load_model()
    with pytest.raises(MaxModelLenTooLarge, match="hold 124 tokens, the model length is 128"):
        worker.determine_num_available_blocks()


def test_the_path_that_computes_is_told_with_the_reason_for_no_faster_one(worker, directory):
    assert worker.get_model_info().compute_path.startswith(("native ", "lean, attention sdpa; not native: "))
    plain = make_worker(directory, attention_backend="sdpa", model_impl="transformers")
    plain.load_model()
    path = plain.get_model_info().compute_path
    plain.shutdown()
    assert path == "transformers, attention sdpa; not native: model_impl is transformers"


def test_health_is_a_computation(worker):
    worker.check_health()


def test_an_allocation_that_fails_is_insufficient_memory(worker):
    with pytest.raises(InsufficientMemory, match="blocks of 1024 bytes cannot be allocated"):
        worker.initialize_cache(1 << 50, 0)


def test_a_failing_forward_pass_leaves_the_next_one_alone(worker):
    tokens = generate(worker)
    with pytest.raises(IndexError):
        worker.execute_model(single(NewSequence("r", [10**9], [], make_sampling()), ([0],)))
    assert generate(worker) == tokens
    assert torch.is_inference_mode_enabled() is False
