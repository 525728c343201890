"""The contract of memory drivers, for host memory and for the devices that are not there."""

import resource
from pathlib import Path

import pytest
import torch

from dormouse_worker.model.device.cuda_calls import CudaCalls
from dormouse_worker.model.device.cuda_driver import CudaDriver
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.ledger_driver import LedgerDriver
from dormouse_worker.model.device.ledger_file import DeviceShare, offer_device
from dormouse_worker.model.device.pinned import PinnedDriver
from dormouse_worker.model.device.testing import FakeCudaDriver
from dormouse_worker.model.device.testing_cuda import FakeCudaBindings, view_host_memory

TOTAL = 64 << 20


def make_cuda_driver(bindings):
    return CudaDriver(CudaCalls(bindings), 0, view_host_memory)


def make_pinned_driver(bindings):
    return PinnedDriver(CudaCalls(bindings), make_cuda_driver(bindings), HostDriver(lambda: TOTAL))


@pytest.fixture(params=["host", "fake", "cuda", "pinned", "ledger"])
def driver(request, tmp_path):
    """Return a driver of each kind, and find afterwards that those over the CUDA driver left nothing behind."""
    bindings = FakeCudaBindings(TOTAL)
    makers = {"cuda": make_cuda_driver, "pinned": make_pinned_driver}
    if request.param in makers:
        yield makers[request.param](bindings)
        assert set(bindings.held.values()) == {0}
    elif request.param == "ledger":
        offer_device(tmp_path / "gpu-0", TOTAL)
        yield LedgerDriver(DeviceShare(tmp_path / "gpu-0", "test"))
    else:
        yield HostDriver(lambda: TOTAL) if request.param == "host" else FakeCudaDriver(TOTAL)


def resident_bytes(address):
    """Return how much of the mapping at this address is resident."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        bounds, _, _ = line.partition(" ")
        start, dash, end = bounds.partition("-")
        if dash and int(start, 16) <= address < int(end, 16):
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))
    raise AssertionError(f"nothing is mapped at {address:x}")


def test_a_range_is_aligned_and_costs_nothing(driver):
    before = driver.free_bytes()
    address = driver.reserve(1 << 30)
    assert address % driver.granularity == 0
    assert driver.free_bytes() == before
    driver.release(address, 1 << 30)


def test_what_is_written_can_be_read_back_until_it_is_unmapped(driver):
    size = 4 * driver.granularity
    address = driver.reserve(size)
    chunk = driver.create(size)
    driver.map(address, chunk, size)
    tensor = driver.tensor(address, size)
    tensor.fill_(7)
    assert int(tensor[-1]) == 7
    assert resident_bytes(address) >= size
    driver.unmap(address, size)
    assert resident_bytes(address) == 0
    driver.destroy(chunk)
    driver.release(address, size)


def test_another_chunk_can_take_the_place_behind_the_same_address(driver):
    size = driver.granularity
    address = driver.reserve(size)
    for value in (1, 2):
        chunk = driver.create(size)
        driver.map(address, chunk, size)
        tensor = driver.tensor(address, size)
        tensor.fill_(value)
        assert int(tensor.sum()) == value * size % (1 << 64)
        driver.unmap(address, size)
        driver.destroy(chunk)
    driver.release(address, size)


def test_more_than_there_is_is_refused_with_the_numbers(driver):
    first = driver.create(TOTAL // 2)
    with pytest.raises(DeviceOutOfMemory) as caught:
        driver.create(TOTAL)
    assert (caught.value.wanted_bytes, caught.value.free_bytes) == (TOTAL, TOTAL // 2)
    assert caught.value.missing_bytes == TOTAL // 2
    driver.destroy(first)
    driver.destroy(driver.create(TOTAL))


def test_a_promise_is_of_what_there_is_and_takes_nothing_that_stays(driver):
    first = driver.create(TOTAL // 2)
    with pytest.raises(DeviceOutOfMemory) as caught, driver.promised(TOTAL):
        raise AssertionError("half of it is taken")
    assert (caught.value.wanted_bytes, caught.value.free_bytes) == (TOTAL, TOTAL // 2)
    with driver.promised(TOTAL // 2):
        driver.destroy(driver.create(TOTAL // 2))
    assert driver.free_bytes() == TOTAL // 2
    driver.destroy(first)


def test_host_memory_that_was_never_touched_is_promised_and_not_free():
    """What the system has available, fixed here, falls only with the first touch."""
    driver, size = HostDriver(lambda: TOTAL), 2 * HostDriver.granularity
    address, chunk = driver.reserve(size), driver.create(size)
    assert driver.free_bytes() == TOTAL - size
    driver.map(address, chunk, size)
    assert driver.free_bytes() == TOTAL - size
    driver.tensor(address, size)[: size // 2].fill_(1)
    assert driver.free_bytes() == TOTAL - size // 2
    driver.unmap(address, size)
    assert driver.free_bytes() == TOTAL - size
    driver.destroy(chunk)
    assert driver.free_bytes() == TOTAL


def test_a_neighbour_takes_from_what_is_free():
    driver = FakeCudaDriver(TOTAL)
    driver.take(TOTAL // 4)
    assert driver.free_bytes() == TOTAL - TOTAL // 4
    driver.give(TOTAL // 4)
    assert driver.free_bytes() == TOTAL


@pytest.mark.parametrize("verb", ["create", "map"])
def test_the_chosen_call_fails_and_only_that_one(verb):
    driver, size = FakeCudaDriver(TOTAL), FakeCudaDriver.granularity
    address = driver.reserve(size)
    driver.fail_at(verb, 1)

    def map_one():
        driver.map(address, driver.create(size), size)
        driver.unmap(address, size)

    map_one()
    with pytest.raises(DeviceOutOfMemory) as caught:
        map_one()
    assert caught.value.missing_bytes >= 1
    map_one()


def test_a_range_that_the_system_refuses_is_an_error(driver):
    with pytest.raises(OSError, match=r"mmap|cuMemAddressReserve"):
        driver.reserve(1 << 60)


def test_a_dirty_device_gives_nans():
    driver, size = FakeCudaDriver(TOTAL, is_dirty=True), FakeCudaDriver.granularity
    assert not driver.gives_zeros
    address = driver.reserve(size)
    driver.map(address, driver.create(size), size)
    assert driver.tensor(address, size).view(torch.float32).isnan().all()


def test_a_kernel_that_commits_no_more_is_a_lack_of_memory():
    driver, size = HostDriver(lambda: 1 << 40), HostDriver.granularity
    address, chunk = driver.reserve(size), driver.create(size)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1, before[1]))
    try:
        with pytest.raises(DeviceOutOfMemory):
            driver.map(address, chunk, size)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    driver.map(address, chunk, size)
