"""Sleep and wake of a rank's worker, on the CPU and on the device that is not there."""

import shutil

import pytest
import torch

from dormouse_worker.common.commands import KV_CACHE, TAGS, WEIGHTS
from dormouse_worker.common.errors import GoldenTokensDiffer, InvalidArgument, ModelNotFound
from dormouse_worker.executor.testing import cache_of, generate, start
from dormouse_worker.model.testing import write_tiny_model

MIB = 1 << 20
SEEDED = {"temperature": 1.0, "seed": 7}
on_each_device = pytest.mark.parametrize("device", ["cpu", "fake"])
at_each_level = pytest.mark.parametrize("level", [1, 2])


@pytest.fixture(params=["cpu", "fake"])
def worker(request, workers, tiny_model):
    """Return a worker that is ready, with swap space."""
    worker = workers(tiny_model, request.param, kv_cache_memory_bytes=MIB, swap_space_bytes=8192)
    start(worker)
    return worker


def say(worker):
    return generate(worker, num_tokens=12), generate(worker, num_tokens=12, **SEEDED)


@at_each_level
def test_the_same_tokens_before_and_after(worker, level):
    before = say(worker)
    worker.sleep(level, TAGS)
    report = worker.wake_up(TAGS)
    assert say(worker) == before
    assert list(report.phases) == ["reserve", WEIGHTS, KV_CACHE, "verify"]


@at_each_level
def test_a_sleep_reports_its_phases_and_what_is_left(worker, level):
    report = worker.sleep(level, TAGS)
    assert list(report.phases) == ["save", "drop"]
    has_copy = level == 1 and worker.device.copies is not None
    assert (report.host_copy_bytes > 0) == has_copy
    assert (report.residual_bytes == 0) == (worker.device.copies is not None)


@at_each_level
@pytest.mark.parametrize("order", [TAGS, TAGS[::-1]])
def test_tags_sleep_and_wake_apart(worker, level, order):
    before = say(worker)
    for tag in order:
        worker.sleep(level, [tag])
    first, last = order
    assert list(worker.wake_up([first]).phases) == ["reserve", first]
    with pytest.raises(AssertionError, match=last):
        generate(worker)
    assert list(worker.wake_up([last]).phases)[:2] == ["reserve", last]
    assert say(worker) == before


def test_a_part_alone_sleeps_and_wakes(worker):
    before = say(worker)
    for tag in TAGS:
        worker.sleep(2, [tag])
        worker.wake_up([tag])
        assert say(worker) == before


def test_sleep_and_wake_are_idempotent(worker):
    before = say(worker)
    assert worker.wake_up(TAGS).phases == {}
    worker.sleep(2, TAGS)
    freed_bytes = worker.sleep(2, TAGS).freed_bytes
    assert worker.device.copies is None or freed_bytes == 0, "on processors others' memory is measured, too"
    assert worker.prepare_wake_up(TAGS) == 0
    assert worker.prepare_wake_up(TAGS) == 0
    worker.wake_up(TAGS)
    assert worker.wake_up(TAGS).phases == {}
    assert worker.prepare_wake_up(TAGS) == 0
    assert say(worker) == before


def test_a_deeper_sleep_is_reached_from_a_lighter_one(worker):
    before = say(worker)
    worker.sleep(1, TAGS)
    deep = worker.sleep(2, TAGS)
    assert deep.host_copy_bytes == 0
    assert worker.sleep(1, TAGS).host_copy_bytes == 0
    worker.wake_up(TAGS)
    assert say(worker) == before


def test_blocks_that_the_cache_has_not_are_refused_and_nothing_changes(worker):
    before = say(worker)
    with pytest.raises(InvalidArgument, match="kept_blocks holds 1048576; the cache has the blocks 0 to"):
        worker.sleep(1, TAGS, [1 << 20])
    assert say(worker) == before


@pytest.mark.parametrize(
    "order",
    [
        lambda worker: worker.sleep(3, TAGS),
        lambda worker: worker.sleep(1, ["wights"]),
        lambda worker: worker.sleep(2, TAGS, [1, 2]),
        lambda worker: worker.wake_up(["swap"]),
        lambda worker: worker.prepare_wake_up(["swap"]),
    ],
)
def test_an_order_that_the_edge_should_have_refused_is_a_bug_and_changes_nothing(worker, order):
    before = say(worker)
    with pytest.raises(AssertionError):
        order(worker)
    assert say(worker) == before


@pytest.mark.parametrize("architecture", ["llama", "ministral"])
@on_each_device
def test_kept_blocks_come_back_also_those_that_the_check_writes_to(workers, tmp_path, device, architecture):
    worker = workers(write_tiny_model(tmp_path, architecture), device, kv_cache_memory_bytes=MIB)
    start(worker)
    kept = [0, 3, 1, 7]
    for pool in cache_of(worker).by_block():
        pool.copy_(torch.randn(pool.shape))
    before = [pool.clone() for pool in cache_of(worker).by_block()]
    assert worker.sleep(1, TAGS, kept).host_copy_bytes > 0
    worker.wake_up(TAGS)
    for pool, old in zip(cache_of(worker).by_block(), before, strict=True):
        assert torch.equal(pool[kept], old[kept])
        assert not pool[-1].any()


def test_kept_blocks_wait_until_the_weights_are_back(worker):
    pool = next(cache_of(worker).by_block())
    pool[2] = 5.0
    worker.sleep(1, TAGS, [2])
    worker.wake_up([KV_CACHE])
    assert not pool[2].any()
    worker.wake_up([WEIGHTS])
    assert (pool[2] == 5.0).all()


def test_the_copies_of_kept_blocks_go_when_the_blocks_are_back(worker):
    lean = worker.sleep(1, TAGS).host_copy_bytes
    worker.wake_up(TAGS)
    assert worker.sleep(1, TAGS, [2]).host_copy_bytes > lean
    worker.wake_up(TAGS)
    assert worker.sleep(1, TAGS).host_copy_bytes == lean


def damage(worker):
    """Change one weight that every token meets, where it lies."""
    with torch.no_grad():
        worker._model.module.model.norm.weight[5] += 1


def test_damaged_weights_are_found_and_nothing_is_held(worker):
    worker.sleep(1, [KV_CACHE])
    damage(worker)
    with pytest.raises(GoldenTokensDiffer):
        worker.wake_up(TAGS)
    assert repr(worker) == f"{type(worker).__name__}(rank=0, model=none, None)"
    assert_nothing_is_held(worker.device)


def assert_nothing_is_held(device):
    drivers = [driver for driver in (device.memory, device.copies) if driver is not None]
    assert [driver.used_bytes for driver in drivers] == [0] * len(drivers)


@pytest.mark.parametrize("stage", ["new", "loaded", "ready", "asleep", "prepared", "half awake"])
def test_a_shutdown_leaves_nothing_on_the_device(workers, tiny_model, stage):
    worker = workers(tiny_model, "fake", kv_cache_memory_bytes=MIB, swap_space_bytes=8192)
    if stage == "loaded":
        worker.load_model()
    elif stage != "new":
        start(worker)
    if stage in {"asleep", "prepared", "half awake"}:
        worker.sleep(1, TAGS, [1])
    if stage == "prepared":
        worker.prepare_wake_up(TAGS)
    if stage == "half awake":
        worker.wake_up([KV_CACHE])
    worker.shutdown()
    worker.shutdown()
    assert_nothing_is_held(worker.device)


@on_each_device
def test_a_wake_without_the_model_holds_nothing_and_can_be_tried_again(workers, tmp_path, device):
    directory = write_tiny_model(tmp_path / "model")
    worker = workers(directory, device, kv_cache_memory_bytes=MIB)
    start(worker)
    before = say(worker)
    worker.sleep(2, TAGS)
    shutil.move(directory, tmp_path / "away")
    with pytest.raises(ModelNotFound):
        worker.wake_up(TAGS)
    assert_nothing_is_held(worker.device)
    shutil.move(tmp_path / "away", directory)
    worker.wake_up(TAGS)
    assert say(worker) == before


def test_another_count_replaces_the_cache_and_says_the_same(worker):
    before = say(worker)
    worker.initialize_cache(40, 0)
    assert "KVCache(40 blocks × 1024 bytes, 2 layers)" in repr(worker)
    assert say(worker) == before
