"""Arenas: addresses that stay, memory that leaves and returns, and failures that hold nothing."""

import pytest
import torch

from dormouse_worker.model.device.arena import Arena, round_up
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.testing import FakeCudaDriver

PAGE = FakeCudaDriver.granularity
SIZE = 5 * PAGE - 100


@pytest.fixture
def driver():
    return FakeCudaDriver(16 * PAGE)


@pytest.fixture
def arena(driver):
    arena = Arena("weights", driver, 12 * PAGE, chunk_bytes=2 * PAGE)
    yield arena
    arena.close()
    assert driver.used_bytes == 0


def fill(arena):
    arena.prepare(SIZE)
    arena.map()


def test_an_empty_arena_holds_nothing(arena, driver):
    assert (arena.size_bytes, driver.used_bytes) == (0, 0)
    assert repr(arena) == f"Arena(weights, empty, 0 of {12 * PAGE} bytes)"


def test_memory_comes_in_chunks_and_all_of_it_at_once(arena, driver):
    arena.prepare(SIZE)
    assert driver.used_bytes == arena.size_bytes == 5 * PAGE
    assert driver.calls["create"] == 3
    assert "prepared" in repr(arena)


def test_preparing_twice_takes_nothing_more(arena, driver):
    arena.prepare(SIZE)
    arena.prepare(SIZE)
    assert driver.used_bytes == 5 * PAGE


def test_a_cancelled_preparation_leaves_nothing(arena, driver):
    arena.prepare(SIZE)
    arena.cancel()
    assert driver.used_bytes == 0


def test_a_view_keeps_its_address_over_unmap_and_map(arena):
    arena.prepare(SIZE)
    arena.map()
    view = arena.tensor(PAGE, (8, 4), torch.float32)
    view.fill_(3.0)
    address = view.data_ptr()
    assert arena.unmap() == 5 * PAGE
    arena.prepare(SIZE)
    arena.map()
    view.copy_(torch.arange(32.0).view(8, 4))
    assert torch.equal(arena.tensor(PAGE, (32,), torch.float32), torch.arange(32.0))
    assert view.data_ptr() == address


def test_the_next_size_may_be_another(arena, driver):
    for size in (PAGE, 12 * PAGE, 3 * PAGE):
        arena.prepare(size)
        arena.map()
        arena.tensor(0, (size,), torch.uint8).fill_(1)
        assert driver.used_bytes == size
        arena.unmap()


@pytest.mark.parametrize(("verb", "index"), [(verb, index) for verb in ("create", "map") for index in range(3)])
def test_a_failure_at_any_chunk_holds_nothing_and_the_next_try_succeeds(arena, driver, verb, index):
    driver.fail_at(verb, index)
    with pytest.raises(DeviceOutOfMemory):
        fill(arena)
    assert driver.used_bytes == 0
    fill(arena)
    arena.tensor(0, (5 * PAGE,), torch.uint8).fill_(1)


def test_a_lack_is_told_for_the_whole_arena(arena, driver):
    driver.take(13 * PAGE)
    with pytest.raises(DeviceOutOfMemory) as caught:
        arena.prepare(SIZE)
    assert (caught.value.wanted_bytes, caught.value.missing_bytes) == (5 * PAGE, 2 * PAGE)
    assert driver.used_bytes == 0


def test_more_than_the_range_is_refused(arena):
    with pytest.raises(ValueError, match=r"weights: \d+ bytes do not fit"):
        arena.prepare(12 * PAGE + 1)


def test_an_arena_of_nothing_works(arena, driver):
    arena.prepare(0)
    arena.map()
    assert driver.used_bytes == arena.unmap() == 0


def test_rounding_goes_up():
    assert [round_up(n, 4) for n in (0, 1, 4, 5)] == [0, 4, 4, 8]
