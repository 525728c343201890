"""The CPU worker on a tiny model: measured memory, allocation, sleep that returns memory, wake that proves itself."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.errors import (
    GoldenTokensDiffer,
    InsufficientMemory,
    InvalidArgument,
    MaxModelLenTooLarge,
    ModelNotFound,
)
from dormouse_worker.executor.cpu_worker import CpuWorker
from dormouse_worker.executor.testing import CACHE_BYTES, first_token, make_worker
from dormouse_worker.host import Host
from dormouse_worker.ipc import TAGS
from dormouse_worker.model.testing import write_tiny_model

MIB = 1 << 20


class LimitedHost(Host):
    """The real host, but with a memory limit of our choice."""

    def __init__(self, limit_bytes):
        super().__init__()
        self._limit_bytes = limit_bytes

    def memory_limit_bytes(self):
        return self._limit_bytes


@pytest.fixture
def directory(tmp_path):
    return write_tiny_model(tmp_path / "model")


@pytest.fixture
def worker(directory):
    """Return a worker with an allocated cache."""
    worker = make_worker(directory, kv_cache_memory_bytes=MIB)
    worker.load_model()
    worker.initialize_cache(*worker.determine_num_available_blocks())
    yield worker
    worker.shutdown()


def test_the_report_is_measured_and_adds_up(directory):
    limit = 4 << 30
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
    assert report.limited_by == "memory limit 4.00 GiB"


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
    assert first_token(second) >= 0
    second.shutdown()


def test_too_little_memory_is_told_with_the_report_kept(directory):
    worker = make_worker(directory, LimitedHost(200 * MIB))
    worker.load_model()
    with pytest.raises(InsufficientMemory, match=r"200\.0 MiB × gpuMemoryUtilization 0\.9"):
        worker.determine_num_available_blocks()
    assert worker.get_memory_report().num_gpu_blocks == 0


def test_a_model_length_above_the_blocks_is_told_with_both_numbers(directory):
    worker = make_worker(directory, kv_cache_memory_bytes=31 * 1024)
    worker.load_model()
    with pytest.raises(MaxModelLenTooLarge, match="hold 124 tokens, the model length is 128"):
        worker.determine_num_available_blocks()


def test_health_is_a_computation(worker):
    worker.check_health()


def test_another_count_replaces_the_cache_and_says_the_same(worker):
    token = first_token(worker)
    worker.initialize_cache(40, 0)
    assert "runner=ModelRunner(KVCache(40 blocks × 1024 bytes, 2 layers)" in repr(worker)
    assert first_token(worker) == token


def test_an_allocation_that_fails_is_insufficient_memory(worker):
    with pytest.raises(InsufficientMemory, match="blocks of 1024 bytes can not be allocated"):
        worker.initialize_cache(1 << 50, 0)


def test_sleep_returns_the_memory_and_wake_brings_the_same_tokens(tmp_path):
    """26 MiB of weights and 64 MiB of touched cache go back to the kernel; eight rounds leave nothing behind."""
    directory = write_tiny_model(tmp_path, hidden_size=1024, intermediate_size=2048, num_hidden_layers=1)
    program = [sys.executable, "-m", "dormouse_worker.executor.testing", str(directory), "8"]
    rounds = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    assert all(told["freed_bytes"] > 0.9 * (told["weights_bytes"] + CACHE_BYTES) for told in rounds), rounds
    assert len({token for told in rounds for token in (told["before"], told["after"])}) == 1
    residuals = [told["residual_bytes"] for told in rounds[1:]]
    assert max(residuals) - min(residuals) < 8 * MIB


def test_sleep_and_wake_are_idempotent(worker):
    worker.wake_up(TAGS)
    worker.sleep(2, TAGS)
    assert worker.sleep(2, TAGS).freed_bytes < MIB
    worker.wake_up(TAGS)


def test_level_1_is_refused(worker):
    with pytest.raises(InvalidArgument, match="level 1 comes with a later version; use 2"):
        worker.sleep(1, TAGS)


def test_other_weights_at_wake_are_found_by_the_golden_tokens(worker, directory):
    worker.sleep(2, TAGS)
    write_tiny_model(directory, seed=1)
    with pytest.raises(GoldenTokensDiffer):
        worker.wake_up(TAGS)
    assert repr(worker) == "CpuWorker(rank=0, model=none, runner=None)"


def test_a_wake_without_the_model_holds_nothing_and_can_be_tried_again(worker, directory, tmp_path):
    token = first_token(worker)
    worker.sleep(2, TAGS)
    shutil.move(directory, tmp_path / "away")
    with pytest.raises(ModelNotFound):
        worker.wake_up(TAGS)
    shutil.move(tmp_path / "away", directory)
    worker.wake_up(TAGS)
    assert first_token(worker) == token


def test_a_failing_forward_pass_leaves_the_next_one_alone(worker):
    token = first_token(worker)
    with pytest.raises(IndexError):
        worker.execute_model(single(NewSequence("r", [10**9], [], make_sampling()), ([0],)))
    assert first_token(worker) == token
    assert torch.is_inference_mode_enabled() is False
