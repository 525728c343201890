"""The worker without torch: what it never imports, its memory, its sleeps, and what it says of damage."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dormouse_worker.common.commands import KV_CACHE, TAGS
from dormouse_worker.common.errors import InsufficientMemory, InvalidArgument, InvalidSettings, ModelChanged
from dormouse_worker.executor.testing import generate, make_settings, start
from dormouse_worker.executor.worker import kernel_worker
from dormouse_worker.executor.worker.bare_worker import BareWorker
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.testing_pooling import write_tiny_encoder
from dormouse_worker.native.library import Missing
from tests.worker.executor.limited_host import LimitedHost
from tests.worker.executor.sleeping_rank import PROMPTS, SleepingRank

MIB = 1 << 20
PROGRAM = """
import json, os, sys
from pathlib import Path
import dormouse_worker.engine_process
from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.single_process import SingleProcessExecutor

sizes = {"kv_cache_memory_bytes": 1 << 20, "max_num_batched_tokens": 32}
fields = {"model": sys.argv[1], "profile_cache": sys.argv[2], **sizes}
executor = SingleProcessExecutor(EngineSettings(**fields), os.environ, Host())
executor.init_device()
executor.load_model()
executor.initialize_cache(*executor.determine_num_available_blocks())
for wish in ({}, {"logprobs": 2, "prompt_logprobs": 2}, {"logit_bias": {3: 1.0}}, {"temperature": 0.8, "seed": 1}):
    executor.execute_model(single(NewSequence("r", [5, 6, 7], [], make_sampling(**wish)), ([0],)))
executor.stored_cache().read_blocks([0])
executor.check_health()
for level in (1, 2):
    executor.sleep(level, TAGS)
    executor.wake_up(TAGS)
executor.save_sharded_state(sys.argv[2] + "/saved")
executor.shutdown()
print(json.dumps([name for name in ("torch", "transformers") if name in sys.modules]))
"""

EMBEDDER = """
import json, os, sys
import dormouse_worker.engine_process
from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch
from dormouse_worker.executor.single_process import SingleProcessExecutor

executor = SingleProcessExecutor(EngineSettings(model=sys.argv[1], max_num_batched_tokens=64), os.environ, Host())
executor.init_device()
executor.load_model()
executor.initialize_cache(*executor.determine_num_available_blocks())
for level in (1, 2):
    executor.begin_pooling(PoolingBatch((PooledSequence([5, 6], PoolingParams()),))).finish()
    executor.check_health()
    executor.sleep(level, TAGS)
    executor.wake_up(TAGS)
executor.shutdown()
print(json.dumps([name for name in ("torch", "transformers") if name in sys.modules]))
"""


@pytest.fixture
def make(tiny_model):
    """Return a function that makes workers, which are shut down after the test."""
    made = []

    def make_one(directory=tiny_model, host=None, **settings):
        made.append(BareWorker(make_settings(directory, **{"kv_cache_memory_bytes": MIB, **settings}), 0, host))
        made[-1].init_device()
        return made[-1]

    yield make_one
    for worker in made:
        worker.shutdown()
        assert worker._device.memory.used_bytes == 0


def rewrite(directory, change):
    """Write the weights anew, each as `change` returns it."""
    file = directory / "model.safetensors"
    save_file({name: change(name, tensor) for name, tensor in load_file(file).items()}, file)


def test_an_engine_from_start_to_end_imports_neither_torch_nor_transformers(tiny_model, tmp_path):
    program = [sys.executable, "-c", PROGRAM, str(tiny_model), str(tmp_path)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []
    assert (tmp_path / "saved" / "config.json").is_file()


@pytest.mark.parametrize("architecture", ["bert", "qwen3"])
def test_neither_is_for_a_model_that_makes_vectors(tmp_path, architecture):
    program = [sys.executable, "-c", EMBEDDER, str(write_tiny_encoder(tmp_path, architecture))]
    assert json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout) == []


def test_without_kernels_there_is_no_such_worker(tiny_model, monkeypatch):
    monkeypatch.setattr(kernel_worker, "load_kernels", lambda: Missing("nobody compiled them"))
    with pytest.raises(InvalidSettings, match="needs our kernels: nobody compiled them"):
        BareWorker(make_settings(tiny_model), 0)


def test_the_report_is_measured_and_adds_up(make):
    host = LimitedHost(16 << 30)
    worker = make(host=host, kv_cache_memory_bytes=0, swap_space_bytes=10 * 1024, gpu_memory_utilization=0.5)
    worker.load_model()
    assert worker.get_memory_report() is None
    blocks = worker.determine_num_available_blocks()
    report = worker.get_memory_report()
    assert blocks == (report.num_gpu_blocks, report.num_cpu_blocks)
    assert (report.block_bytes, report.num_cpu_blocks) == (1024, 10)
    taken = report.weights_bytes + report.peak_activation_bytes + report.non_torch_bytes
    assert report.kv_cache_bytes == (8 << 30) - taken - 10 * 1024


def test_too_little_memory_is_told_with_the_report_kept(make):
    worker = make(host=(host := LimitedHost(8 << 30)), kv_cache_memory_bytes=0)
    worker.load_model()
    host.limit_bytes = 20 * MIB
    with pytest.raises(InsufficientMemory, match=r"20\.0 MiB × gpuMemoryUtilization 0\.9"):
        worker.determine_num_available_blocks()
    assert worker.get_memory_report().num_gpu_blocks == 0


def test_weights_that_the_limit_does_not_hold_are_refused_before_they_are_read(make):
    worker = make(host=LimitedHost(20 * MIB))
    with pytest.raises(InsufficientMemory, match="the weights take"):
        worker.load_model()


def test_a_cache_that_cannot_be_allocated_leaves_nothing_held(make):
    worker = make(host=(host := LimitedHost(8 << 30)))
    worker.load_model()
    held = worker._device.memory.used_bytes
    host.limit_bytes = 20 * MIB
    with pytest.raises(InsufficientMemory, match="cannot be allocated"):
        worker.initialize_cache(1000, 0)
    assert worker._device.memory.used_bytes == held


def test_a_deep_sleep_gives_all_memory_back_and_the_same_tokens_come_after_it(make):
    worker = make(swap_space_bytes=64 * 1024)
    start(worker)
    told = generate(worker, num_tokens=8)
    for level in (1, 2, 2):
        worker.sleep(level, TAGS)
        assert level == 1 or worker._device.memory.used_bytes == 0
        assert worker.prepare_wake_up(TAGS) == 0
        worker.wake_up(TAGS)
        assert generate(worker, num_tokens=8) == told


def test_kept_blocks_come_back(make):
    worker = make()
    start(worker)
    generate(worker, range(30, 50))
    before = [bytes(block) for block in worker.stored_cache().read_blocks([3, 5])]
    assert worker.sleep(1, (KV_CACHE,), [5, 3]).host_copy_bytes > 0
    worker.wake_up(TAGS)
    assert [bytes(block) for block in worker.stored_cache().read_blocks([3, 5])] == before
    with pytest.raises(InvalidArgument, match="kept_blocks holds 9999"):
        worker.sleep(1, TAGS, [9999])


def test_weights_that_changed_during_a_sleep_are_found(make, tmp_path):
    worker = make(write_tiny_model(tmp_path / "model"))
    start(worker)
    worker.sleep(2, TAGS)
    rewrite(tmp_path / "model", lambda name, tensor: tensor + 1 if name == "model.norm.weight" else tensor)
    with pytest.raises(ModelChanged, match=r"model\.norm\.weight is not what was loaded"):
        worker.wake_up(TAGS)
    assert worker._device.memory.used_bytes == 0


@pytest.mark.parametrize("part", ["q_proj", "down_proj", "embed_tokens", "lm_head"])
def test_a_weight_that_is_not_finite_in_the_files_is_named(make, tmp_path, part):
    def damaged(name, tensor):
        if part in name:
            tensor.reshape(-1)[7] = np.nan
        return tensor

    rewrite(write_tiny_model(tmp_path / "model"), damaged)
    with pytest.raises(Exception, match=rf"{part}.* holds nan at element 7"):
        make(tmp_path / "model").load_model()


@pytest.mark.parametrize("wish", [{}, {"temperature": 0.7}, {"logprobs": 1}, {"logit_bias": {3: 9.0}}], ids=str)
def test_numbers_that_are_no_longer_finite_end_a_request_with_the_reason(tiny_model, wish):
    rank = SleepingRank(tiny_model, "no torch", keeps=False)
    weights = rank.controller._executor._wrapper._worker._model.weights
    weights.tensor("model.norm.weight")[3] = np.nan
    assert rank.refusal(PROMPTS[0], **wish).startswith("the model's logits are not finite")
    assert rank.is_ready
    rank.close()


def test_swapped_blocks_come_back_as_they_were(make):
    worker = make(swap_space_bytes=64 * 1024)
    start(worker)
    generate(worker, range(30, 50))
    runner, before = worker._allocated()._runner, [bytes(each) for each in worker.stored_cache().read_blocks([3])]
    runner._host_cache.copy_blocks(runner._cache, [(3, 1)])
    runner._cache.copy_blocks(runner._host_cache, [(1, 9)])
    assert [bytes(each) for each in worker.stored_cache().read_blocks([9])] == before


def test_what_it_saves_is_a_model_with_the_same_weights(make, tiny_model, tmp_path):
    worker = make()
    start(worker)
    worker.save_sharded_state(str(tmp_path / "saved"))
    saved = check_model_files(tmp_path / "saved", "sharded_state").tensors
    before = check_model_files(tiny_model, "auto").tensors
    assert {name: (each.dtype, each.shape) for name, each in saved.items()} == {
        name: (each.dtype, each.shape) for name, each in before.items()
    }


def test_torchs_profiler_is_refused_by_name(make):
    with pytest.raises(InvalidArgument, match="start it with engine-runtime torch"):
        make().start_profile("/nowhere")


def test_a_batch_after_a_failed_one_has_to_be_fresh(make):
    worker = make()
    start(worker)
    with pytest.raises(IndexError):
        generate(worker, [10**6])
    assert generate(worker, [5])


def test_a_model_that_needs_torch_is_refused_by_whoever_is_asked_for_it_all_the_same(make, tmp_path):
    with pytest.raises(InvalidSettings, match=r"needs an engine with torch: config\.json describes no"):
        make(write_tiny_model(tmp_path / "model", "gpt2")).load_model()
