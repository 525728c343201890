"""The cache's memory: it comes zero and goes whole, kept blocks come back, a lack of memory changes nothing."""

import pytest
import torch

from dormouse_worker.common.errors import InsufficientMemory, InvalidArgument
from dormouse_worker.model.cache_store import MANY_PAGES, CacheStore
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.kept_blocks import KeptBlocks
from dormouse_worker.model.kv_cache import CacheSpec, LayerSpec, arena_bytes
from tests.worker.model.cache_kit import LostDevice, SmallHost, contents, fill, is_zero, sleep, wake
from tests.worker.model.resident import is_advised_huge, resident_share

LAYER = LayerSpec(2, 8, 4, torch.float32)
SPEC = CacheSpec.of((LAYER,) * 4, block_size=4, windows=(None, 8, None, 8))  # two groups, two pools
MIXED = CacheSpec.of((LayerSpec(1, 3, 5, torch.bfloat16), LAYER), block_size=3)
NUM_BLOCKS = 5
LARGE = CacheSpec.of((LayerSpec(4, 128, 128, torch.float32),), block_size=16)  # 32 KiB of keys, as many of values
LARGE_BLOCKS = 100
PAGE = FakeCudaDriver.granularity


@pytest.fixture
def host():
    return SmallHost(1 << 30)


@pytest.fixture(params=["cpu", "fake", "dirty"])
def device(request, host):
    if request.param == "cpu":
        return CpuDevice(host)
    return FakeDevice(FakeCudaDriver(8 * PAGE, is_dirty=request.param == "dirty"), host)


@pytest.fixture(params=[SPEC, MIXED], ids=["groups", "mixed"])
def store(device, request):
    store = CacheStore(device, request.param, NUM_BLOCKS)
    yield store
    store.close()
    assert "0 chunks" in repr(device.copies or device.memory)


def test_a_fresh_cache_is_zero_and_aligned(store):
    assert is_zero(store)
    assert all(pool.data_ptr() % 512 == 0 for pool in store.cache.by_block())
    assert not store.is_asleep
    assert arena_bytes(store.cache.spec, NUM_BLOCKS) <= store.wake_bytes


def resident_bytes(store):
    """Return how much of the cache the kernel has put memory behind."""
    return sum(resident_share(pool.numpy()) * pool.nbytes for pool in store.cache.by_block())


def test_with_one_memory_blocks_take_memory_when_they_are_written(host):
    store = CacheStore(CpuDevice(host), LARGE, LARGE_BLOCKS)
    for _ in range(2):
        assert resident_bytes(store) == 0
        for pool in store.cache.by_block():
            pool[:2] = 1
        assert 2 * LARGE.block_bytes <= resident_bytes(store) <= 3 * LARGE.block_bytes
        sleep(store)
        wake(store)
    store.close()


def test_what_is_agreed_is_not_free_although_nobody_has_written_it(host):
    """Else two could be promised the same memory, and the kernel would end one of them later."""
    host.left_bytes = arena_bytes(LARGE, LARGE_BLOCKS) + PAGE
    device = CpuDevice(host)
    store = CacheStore(device, LARGE, LARGE_BLOCKS)
    assert device.memory.free_bytes() < 2 * PAGE
    with pytest.raises(DeviceOutOfMemory):
        CacheStore(device, LARGE, LARGE_BLOCKS)
    store.close()


def test_a_cache_that_is_asked_for_at_once_is_there_before_anybody_uses_it(host):
    store = CacheStore(CpuDevice(host), LARGE, LARGE_BLOCKS, prefaults=True)
    for _ in range(2):
        assert resident_bytes(store) == store.cache.num_blocks * LARGE.block_bytes
        sleep(store)
        wake(store)
    store.close()


@pytest.mark.parametrize(("num_pages", "is_huge"), [(MANY_PAGES, True), (MANY_PAGES - 1, False)])
def test_huge_pages_are_asked_for_where_they_waste_little(host, num_pages, is_huge):
    num_blocks = num_pages * PAGE // (LARGE.block_bytes // 2)
    store = CacheStore(CpuDevice(host), LARGE, num_blocks)
    assert is_advised_huge(store.cache.pools[0].key.data_ptr()) == is_huge
    store.close()


def test_what_sleeps_is_lost_and_the_addresses_stay(store):
    fill(store)
    before = [pool.data_ptr() for pool in store.cache.by_block()]
    sleep(store)
    assert store.is_asleep
    assert "asleep" in repr(store)
    wake(store)
    assert is_zero(store)
    assert [pool.data_ptr() for pool in store.cache.by_block()] == before


@pytest.mark.parametrize("kept", [(0,), (4, 1, 3), (0, 1, 2, 3, 4)])
def test_kept_blocks_come_back_and_only_they(store, kept):
    before = fill(store)
    sleep(store, kept=kept)
    assert store.host_copy_bytes >= PAGE
    wake(store)
    for pool, old in zip(contents(store), before, strict=True):
        assert torch.equal(pool[list(kept)], old[list(kept)])
        pool[list(kept)] = 0
        assert not pool.any()
    assert store.host_copy_bytes == 0


@pytest.mark.parametrize("slice_bytes", [1, 500])
def test_blocks_are_copied_slice_by_slice(device, store, slice_bytes):
    before = fill(store)
    kept = KeptBlocks(store.cache, (4, 1, 3), device, slice_bytes=slice_bytes)
    for pool in store.cache.by_block():
        pool.zero_()
    kept.put_back(store.cache)
    kept.close()
    for pool, old in zip(contents(store), before, strict=True):
        assert torch.equal(pool[[1, 3, 4]], old[[1, 3, 4]])


def test_what_is_kept_survives_a_wake_that_is_taken_back(store):
    before = fill(store)
    sleep(store, kept=(2,))
    for _ in range(2):
        store.restore()
        store.put_back()
        store.drop()
    wake(store)
    assert [bool(torch.equal(pool[2], old[2])) for pool, old in zip(contents(store), before, strict=True)] == [True] * 4


def test_what_is_not_back_yet_is_kept_over_the_next_sleep(store):
    """A part that was woken alone: its blocks return when the rest is awake too."""
    before = fill(store)
    sleep(store, kept=(2,))
    store.restore()
    store.settle()
    sleep(store, kept=(2,))
    wake(store)
    assert torch.equal(contents(store)[0][2], before[0][2])


def test_a_deeper_sleep_lets_the_kept_blocks_go(store):
    fill(store)
    sleep(store, kept=(2,))
    sleep(store, level=2)
    assert store.host_copy_bytes == 0
    sleep(store, level=1)
    wake(store)
    assert is_zero(store)


def test_a_save_that_is_forgotten_keeps_nothing(store):
    before = fill(store)
    store.keep((1,))
    store.save(1)
    store.forget()
    assert store.host_copy_bytes == 0
    assert all(torch.equal(pool, old) for pool, old in zip(contents(store), before, strict=True))
    sleep(store)
    wake(store)
    assert is_zero(store)


@pytest.mark.parametrize("block", [-1, 10])
def test_a_block_that_is_none_is_refused(device, block):
    store = CacheStore(device, SPEC, NUM_BLOCKS)
    with pytest.raises(InvalidArgument, match=f"kept_blocks holds {block}; the cache has the blocks 0 to 9"):
        store.keep((0, block))
    store.close()


def test_kept_blocks_that_do_not_fit_are_refused_with_numbers(host):
    store = CacheStore(FakeDevice(FakeCudaDriver(), host), SPEC, NUM_BLOCKS)
    before = fill(store)
    host.left_bytes = 100
    store.keep((1,))
    with pytest.raises(InsufficientMemory, match=r"keeping 1 blocks takes 2\.0 MiB of host memory, 0\.0 MiB are free"):
        store.save(1)
    assert not store.is_asleep
    assert all(torch.equal(pool, old) for pool, old in zip(contents(store), before, strict=True))
    host.left_bytes = 1 << 30
    sleep(store)
    store.close()


def test_a_copy_that_fails_holds_nothing(host):
    device = LostDevice(FakeCudaDriver(), host)
    store = CacheStore(device, SPEC, NUM_BLOCKS)
    store.keep((1,))
    with pytest.raises(RuntimeError, match="lost"):
        store.save(1)
    assert repr(device.copies) == "HostDriver(0 chunks, 0 bytes)"
    store.close()


@pytest.mark.parametrize("verb", ["create", "map"])
def test_memory_that_lacks_leaves_nothing_behind(verb):
    driver = FakeCudaDriver()
    driver.fail_at(verb, 0)
    with pytest.raises(DeviceOutOfMemory):
        CacheStore(FakeDevice(driver), SPEC, NUM_BLOCKS)
    assert driver.used_bytes == 0
    store = CacheStore(FakeDevice(driver), SPEC, NUM_BLOCKS)
    sleep(store)
    driver.fail_at(verb, 0)
    with pytest.raises(DeviceOutOfMemory):
        store.restore()
    assert (driver.used_bytes, store.is_asleep) == (0, True)
    wake(store)
    store.close()


def test_swapped_blocks_take_host_memory_and_say_so(host):
    driver = FakeCudaDriver(PAGE)
    store = CacheStore(FakeDevice(driver, host), SPEC, NUM_BLOCKS, is_beside=True)
    assert (driver.used_bytes, store.wake_bytes) == (0, 0)
    sleep(store)
    host.left_bytes = 0
    with pytest.raises(InsufficientMemory, match=r"swap space takes 2\.0 MiB of host memory, 0\.0 MiB are free"):
        store.reserve()
    host.left_bytes = 1 << 30
    wake(store)
    store.close()


def test_with_one_memory_swapped_blocks_count(host):
    store = CacheStore(CpuDevice(host), SPEC, NUM_BLOCKS, is_beside=True)
    assert store.wake_bytes == PAGE
    sleep(store)
    host.left_bytes = 0
    with pytest.raises(DeviceOutOfMemory):
        store.reserve()
    store.cancel()
    store.close()


@pytest.mark.parametrize("state", ["awake", "asleep with copies", "reserved"])
def test_the_memory_is_given_back_whatever_the_state(state):
    device = FakeDevice()
    store = CacheStore(device, SPEC, NUM_BLOCKS)
    if state != "awake":
        sleep(store, kept=(1,))
    if state == "reserved":
        store.reserve()
    store.close()
    assert device.memory.used_bytes == 0
    assert repr(device.copies) == "HostDriver(0 chunks, 0 bytes)"
