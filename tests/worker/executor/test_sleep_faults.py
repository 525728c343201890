"""Everything that can fail in a sleep or a wake fails once, at every single place; afterwards all is as it was before.

The device's memory and the host memory for copies are both fake drivers that give two MiB at once.
"""

from itertools import count

import pytest
import torch

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.executor.testing import cache_of, generate, make_fake_worker
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.testing import write_tiny_model

CHUNK = FakeCudaDriver.granularity
NUM_BLOCKS = 80  # 4 chunks
KEPT = (0, 3, 79)
SETTINGS = {"block_size": 16, "kv_cache_memory_bytes": 8 << 20}
each_verb = pytest.mark.parametrize("verb", ["create", "map"])
each_level = pytest.mark.parametrize("level", [1, 2])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a model with 3 chunks of weights and blocks of 96 KiB."""
    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_key_value_heads": 4, "head_dim": 96}
    return write_tiny_model(tmp_path_factory.mktemp("model"), num_hidden_layers=2, initializer_range=0.05, **sizes)


@pytest.fixture(params=[(True, False), (False, False), (True, True)], ids=["host copy", "no host copy", "copy engine"])
def worker(request, directory):
    """Return a worker that is ready, with something in the blocks to keep."""
    keeps_host_copy, has_copy_engine = request.param
    copies = FakeCudaDriver(chunk_bytes=CHUNK)
    device = FakeDevice(FakeCudaDriver(chunk_bytes=CHUNK, is_dirty=True), copies=copies)
    device.has_copy_engine = has_copy_engine
    worker = make_fake_worker(directory, device, keep_host_copy=keeps_host_copy, **SETTINGS)
    worker.load_model()
    worker.initialize_cache(NUM_BLOCKS, 5)
    yield worker
    worker.shutdown()
    assert held(worker) == (0, 0)


def held(worker):
    return worker.fake.memory.used_bytes, worker.fake.copies.used_bytes


def awake_again(worker, awake, level):
    """Return what is held after a wake: one from a deep sleep leaves no host copy."""
    copied = 3 * CHUNK if worker.settings.keep_host_copy and level == 2 else 0
    return awake[0], awake[1] - copied


def say(worker):
    return generate(worker, num_tokens=6)


def fill_kept(worker):
    for pool in cache_of(worker).by_block():
        pool[list(KEPT)] = torch.randn(pool[list(KEPT)].shape)


def kept(worker):
    return [pool[list(KEPT)].clone() for pool in cache_of(worker).by_block()]


def is_same(ours, theirs):
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def sleep(worker, level):
    worker.sleep(level, TAGS, KEPT if level == 1 else ())


def try_every_place(arm, disarm, attempt, check, errors):
    """Let `attempt` fail at the first place, the second …, until there is none left; return how many there were.

    `check` is called after each failure.
    """
    for index in count():
        arm(index)
        failed = False
        try:
            attempt()
        except errors:
            failed = True
        if disarm():
            assert not failed
            return index
        assert failed
        check()
    raise AssertionError


@each_verb
@each_level
def test_a_wake_that_lacks_device_memory_at_any_chunk(worker, verb, level):
    before = say(worker)
    awake = held(worker)
    sleep(worker, level)
    asleep = held(worker)

    def check():
        assert held(worker) == asleep
        with pytest.raises(AssertionError, match="sleep"):
            say(worker)

    memory = worker.fake.memory
    places = try_every_place(
        lambda index: memory.fail_at(verb, index),
        memory.disarm,
        lambda: worker.wake_up(TAGS),
        check,
        InsufficientMemory,
    )
    assert places == awake[0] // CHUNK >= 7
    assert (say(worker), held(worker)) == (before, awake_again(worker, awake, level))


def test_a_preparation_that_lacks_memory_at_any_chunk_reserves_nothing(worker):
    sleep(worker, 1)
    asleep = held(worker)
    memory = worker.fake.memory
    for index in count():
        memory.fail_at("create", index)
        missing_bytes = worker.prepare_wake_up(TAGS)
        if memory.disarm():
            break
        assert missing_bytes == 1  # the device says it has enough
        assert held(worker) == asleep
    assert missing_bytes == 0
    assert memory.used_bytes // CHUNK == index >= 7


@each_verb
def test_a_sleep_that_lacks_host_memory_at_any_chunk(worker, verb):
    fill_kept(worker)
    before, blocks, awake = say(worker), kept(worker), held(worker)

    def check():
        assert (held(worker), say(worker)) == (awake, before)
        assert is_same(kept(worker), blocks)

    copies = worker.fake.copies
    places = try_every_place(
        lambda index: copies.fail_at(verb, index),
        copies.disarm,
        lambda: worker.sleep(1, TAGS, KEPT),
        check,
        InsufficientMemory,
    )
    assert places >= 1
    assert held(worker)[0] == 0
    worker.wake_up(TAGS)
    assert (held(worker), say(worker)) == (awake, before)
    assert is_same(kept(worker), blocks)


def test_a_copy_that_fails_at_any_place_of_a_sleep(worker):
    fill_kept(worker)
    before, blocks, awake = say(worker), kept(worker), held(worker)

    def check():
        assert (held(worker), say(worker)) == (awake, before)
        assert is_same(kept(worker), blocks)

    device = worker.fake
    places = try_every_place(
        device.fail_copy_at, device.disarm, lambda: worker.sleep(1, TAGS, KEPT), check, RuntimeError
    )
    assert places >= 4
    worker.wake_up(TAGS)
    assert is_same(kept(worker), blocks)


@each_level
def test_a_copy_that_fails_at_any_place_of_a_wake(worker, level):
    fill_kept(worker)
    before, blocks, awake = say(worker), kept(worker), held(worker)
    sleep(worker, level)
    asleep = held(worker)

    def check():
        assert held(worker) == asleep

    device = worker.fake
    places = try_every_place(device.fail_copy_at, device.disarm, lambda: worker.wake_up(TAGS), check, RuntimeError)
    if level == 1:
        assert places >= 1 + 4  # the weights, the kept blocks of two pools
        assert is_same(kept(worker), blocks)
    assert (held(worker), say(worker)) == (awake_again(worker, awake, level), before)


@each_verb
def test_swap_space_that_is_not_to_be_had_refuses_the_wake(worker, verb):
    before, awake = say(worker), held(worker)
    sleep(worker, 1)
    asleep = held(worker)
    worker.fake.copies.fail_at(verb, 0)
    with pytest.raises(InsufficientMemory):
        worker.wake_up(TAGS)
    assert held(worker) == asleep
    worker.wake_up(TAGS)
    assert (held(worker), say(worker)) == (awake, before)


@each_verb
def test_a_cache_that_lacks_memory_at_any_chunk_leaves_the_model(worker, verb):
    before, awake = say(worker), held(worker)
    worker.fake.memory.fail_at(verb, 0)
    with pytest.raises(InsufficientMemory, match=f"{NUM_BLOCKS} \\+ 5 blocks of 98304 bytes cannot be allocated"):
        worker.initialize_cache(NUM_BLOCKS, 5)
    weights = held(worker)

    def check():
        assert held(worker) == weights

    memory = worker.fake.memory
    places = try_every_place(
        lambda index: memory.fail_at(verb, index),
        memory.disarm,
        lambda: worker.initialize_cache(NUM_BLOCKS, 5),
        check,
        InsufficientMemory,
    )
    assert places == (awake[0] - weights[0]) // CHUNK
    assert (held(worker), say(worker)) == (awake, before)


@each_level
def test_a_neighbour_is_told_to_the_byte(worker, level):
    before = say(worker)
    awake = held(worker)
    memory = worker.fake.memory
    memory.total_bytes = awake[0] + 3 * CHUNK
    sleep(worker, level)
    asleep = held(worker)
    memory.take(5 * CHUNK)
    assert worker.prepare_wake_up(TAGS) == 2 * CHUNK
    with pytest.raises(InsufficientMemory, match=f"^{2 * CHUNK} bytes are missing on the device"):
        worker.wake_up(TAGS)
    assert held(worker) == asleep
    memory.give(2 * CHUNK - 1)
    assert worker.prepare_wake_up(TAGS) == 1
    memory.give(1)
    assert worker.prepare_wake_up(TAGS) == 0
    assert memory.free_bytes() == 0
    worker.wake_up(TAGS)
    assert (held(worker), say(worker)) == (awake_again(worker, awake, level), before)


def test_a_sleep_gives_what_is_prepared_back(worker):
    sleep(worker, 1)
    asleep = held(worker)
    worker.prepare_wake_up(TAGS)
    assert held(worker) != asleep
    worker.sleep(1, TAGS)
    assert held(worker) == asleep


def test_a_preparation_without_swap_space_is_refused(worker):
    sleep(worker, 1)
    worker.fake.copies.fail_at("create", 0)
    with pytest.raises(InsufficientMemory, match=r"swap space takes 2\.0 MiB of host memory"):
        worker.prepare_wake_up(TAGS)
    assert worker.fake.memory.used_bytes == 0
