"""The GPU's memory through the driver's calls, on a fake of the module that makes them."""

import errno
import threading

import pytest
import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.cuda_calls import (
    CudaCalls,
    CudaError,
    open_cuda,
    require_capability,
    require_driver,
)
from dormouse_worker.model.device.cuda_driver import CudaDriver, DevicePointer, device_names
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.pinned import PinnedDriver
from dormouse_worker.model.device.testing_cuda import GRANULARITY, UUID, FakeCudaBindings, view_host_memory

TOTAL = 32 << 20
UINT8 = torch.uint8
NOTHING = {"ranges": 0, "chunks": 0, "mapped": 0, "pinned": 0}


@pytest.fixture
def bindings():
    return FakeCudaBindings(TOTAL)


@pytest.fixture
def driver(bindings):
    return CudaDriver(CudaCalls(bindings), 0, view_host_memory)


@pytest.fixture
def pinned(bindings, driver):
    return PinnedDriver(CudaCalls(bindings), driver, HostDriver(lambda: TOTAL))


NAME = "00010203-0405-0607-0809-0a0b0c0d0e0f"


def map_arena(driver, num_chunks=3):
    """Return a mapped arena of several chunks."""
    arena = Arena("weights", driver, 16 << 20, chunk_bytes=GRANULARITY)
    arena.prepare(num_chunks * GRANULARITY)
    arena.map()
    return arena


def test_a_device_may_be_a_whole_gpu_or_a_slice_of_one(bindings):
    whole, part = device_names(CudaCalls(bindings), 0)
    assert (whole, part) == (f"GPU-{NAME}", f"MIG-{NAME}")
    assert UUID.hex() == NAME.replace("-", "")


@pytest.mark.parametrize("version", [13000, 13020, 14000])
def test_a_driver_serves_every_release_of_its_major_one_and_older_ones(bindings, version):
    bindings.version = version
    require_driver(CudaCalls(bindings), "13.2")
    require_driver(CudaCalls(bindings), None)


def test_a_driver_that_is_too_old_is_named_with_what_is_needed(bindings):
    bindings.version = 12080
    with pytest.raises(InvalidSettings, match=r"driver offers CUDA 12\.8; this image needs CUDA 13\.0 or later"):
        require_driver(CudaCalls(bindings), "13.2")


@pytest.mark.parametrize(
    ("capability", "arch_list"),
    [((7, 5), ["sm_75", "sm_80"]), ((8, 6), ["sm_80", "sm_90a"]), ((12, 0), ["sm_90", "compute_90"]), ((3, 5), [])],
)
def test_a_device_that_this_torch_computes_on_passes(capability, arch_list):
    require_capability(capability, arch_list)


def test_a_device_older_than_all_that_torch_was_compiled_for_is_named():
    with pytest.raises(InvalidSettings, match=r"capability 7\.0; this image computes on 7\.5 and later"):
        require_capability((7, 0), ["sm_120", "sm_75", "compute_120"])


def test_what_the_device_tells_of_itself(driver):
    assert (driver.capability, driver.total_bytes, driver.granularity) == ((9, 0), TOTAL, GRANULARITY)


@pytest.mark.parametrize("has_rdma", [True, False])
def test_direct_access_by_network_cards_is_asked_for_only_where_the_device_has_it(has_rdma):
    """The fake refuses both: to ask a device without it, and not to ask one that has it."""
    driver = CudaDriver(CudaCalls(FakeCudaBindings(TOTAL, has_rdma=has_rdma)), 0, view_host_memory)
    driver.destroy(driver.create(GRANULARITY))


def test_used_bytes_are_those_of_the_chunks(driver, bindings):
    arena = map_arena(driver)
    bindings.take(1 << 20)
    assert driver.used_bytes == arena.size_bytes == 3 * GRANULARITY
    assert driver.free_bytes() == TOTAL - 3 * GRANULARITY - (1 << 20)
    assert repr(driver) == "CudaDriver(0, 3 chunks, 6291456 bytes)"
    arena.close()
    assert driver.used_bytes == 0


def test_any_thread_may_ask_for_free_memory_and_take_it(driver, pinned):
    """A context is current in the thread that made it so, and in no other."""
    results = []

    def work():
        results.append(driver.free_bytes())
        map_arena(driver).close()
        map_arena(pinned).close()
        results.append(driver.free_bytes())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [TOTAL, TOTAL]


def test_missing_memory_is_told_with_the_numbers(driver, bindings):
    bindings.take(TOTAL - GRANULARITY)
    driver.make_current()
    with pytest.raises(DeviceOutOfMemory) as caught:
        driver.create(4 * GRANULARITY)
    assert (caught.value.wanted_bytes, caught.value.missing_bytes) == (4 * GRANULARITY, 3 * GRANULARITY)


def test_where_even_free_memory_can_not_be_told_the_missing_memory_still_is(driver, bindings):
    bindings.take(TOTAL)
    bindings.fail_at("cuMemGetInfo", 0, "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DeviceOutOfMemory, match="2097152 bytes are wanted, 0 are free"):
        driver.create(GRANULARITY)


def test_every_other_failure_names_the_call_and_the_code(driver, bindings):
    bindings.fail_at("cuMemCreate", 0, "CUDA_ERROR_ECC_UNCORRECTABLE")
    with pytest.raises(CudaError) as caught:
        driver.create(GRANULARITY)
    assert str(caught.value) == "cuMemCreate: CUDA_ERROR_ECC_UNCORRECTABLE (214)"
    assert (caught.value.call, caught.value.code, caught.value.errno) == ("cuMemCreate", 214, errno.EIO)


def test_a_lack_of_addresses_is_an_error_of_the_system_as_with_host_memory(driver):
    with pytest.raises(OSError, match=r"cuMemAddressReserve: CUDA_ERROR_OUT_OF_MEMORY \(2\)") as caught:
        driver.reserve(1 << 60)
    assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
@pytest.mark.parametrize("index", range(3))
def test_missing_memory_at_any_call_leaves_nothing_behind(bindings, driver, name, index):
    arena = Arena("weights", driver, 16 << 20, chunk_bytes=GRANULARITY)
    bindings.fail_at(name, index, "CUDA_ERROR_OUT_OF_MEMORY")

    def wake():
        arena.prepare(3 * GRANULARITY)
        arena.map()

    with pytest.raises(DeviceOutOfMemory):
        wake()
    assert bindings.held == {**NOTHING, "ranges": 1}
    wake()
    arena.close()
    assert bindings.held == NOTHING


def test_access_that_is_refused_unmaps(bindings, driver):
    address, chunk = driver.reserve(GRANULARITY), driver.create(GRANULARITY)
    bindings.fail_at("cuMemSetAccess", 0, "CUDA_ERROR_UNKNOWN")
    with pytest.raises(CudaError, match="cuMemSetAccess"):
        driver.map(address, chunk, GRANULARITY)
    assert bindings.held == {**NOTHING, "ranges": 1, "chunks": 1}
    driver.map(address, chunk, GRANULARITY)
    driver.unmap(address, GRANULARITY)
    driver.destroy(chunk)
    driver.release(address, GRANULARITY)


def test_the_wrong_order_is_refused_by_the_driver(driver):
    address, chunk = driver.reserve(2 * GRANULARITY), driver.create(GRANULARITY)
    driver.map(address, chunk, GRANULARITY)
    with pytest.raises(CudaError, match="cuMemRelease"):
        driver.destroy(chunk)
    with pytest.raises(CudaError, match="cuMemAddressFree"):
        driver.release(address, 2 * GRANULARITY)
    with pytest.raises(CudaError, match="cuMemUnmap"):
        driver.unmap(address, 2 * GRANULARITY)
    with pytest.raises(CudaError, match="cuMemMap"):
        driver.map(address, chunk, GRANULARITY)
    driver.unmap(address, GRANULARITY)
    driver.destroy(chunk)
    driver.release(address, 2 * GRANULARITY)


def test_a_part_of_a_granule_is_refused(driver):
    with pytest.raises(CudaError, match="cuMemCreate: CUDA_ERROR_INVALID_VALUE"):
        driver.create(GRANULARITY + 1)
    with pytest.raises(CudaError, match="cuMemAddressReserve"):
        driver.reserve(1)


def test_a_device_that_is_not_there_is_an_error(bindings):
    with pytest.raises(CudaError, match="cuDeviceGet"):
        CudaDriver(CudaCalls(bindings), 1, view_host_memory)


def test_closing_gives_the_context_back_and_only_without_memory(bindings, driver):
    chunk = driver.create(GRANULARITY)
    with pytest.raises(AssertionError, match="closed with memory held"):
        driver.close()
    driver.destroy(chunk)
    driver.close()
    assert not bindings.has_context


def test_a_tensor_borrows_the_address_and_owns_nothing():
    assert DevicePointer(1 << 40, 4096).__cuda_array_interface__ == {
        "data": (1 << 40, False),
        "shape": (4096,),
        "typestr": "|u1",
        "version": 2,
    }


def test_pinned_memory_is_exact_and_goes_back(bindings, pinned):
    arena = map_arena(pinned)
    assert pinned.pinned_bytes == 3 * GRANULARITY
    assert repr(pinned) == "PinnedDriver(6291456 bytes pinned, HostDriver(3 chunks, 6291456 bytes))"
    arena.unmap()
    assert (pinned.pinned_bytes, bindings.held["pinned"]) == (0, 0)
    arena.close()


def test_seams_lie_where_registrations_meet(pinned):
    arena = map_arena(pinned)
    start = arena.tensor(0, [1], UINT8).data_ptr()
    assert pinned.seams(start, start + arena.size_bytes) == [start + GRANULARITY, start + 2 * GRANULARITY]
    assert pinned.seams(start + GRANULARITY, start + 2 * GRANULARITY) == []
    arena.close()


@pytest.mark.parametrize(
    ("code", "error"), [("CUDA_ERROR_OUT_OF_MEMORY", DeviceOutOfMemory), ("CUDA_ERROR_UNKNOWN", CudaError)]
)
def test_memory_that_can_not_be_pinned_is_not_mapped(bindings, pinned, code, error):
    address, chunk = pinned.reserve(GRANULARITY), pinned.create(GRANULARITY)
    free_bytes = pinned.free_bytes()
    bindings.fail_at("cuMemHostRegister", 0, code)
    with pytest.raises(error) as caught:
        pinned.map(address, chunk, GRANULARITY)
    if error is DeviceOutOfMemory:
        assert caught.value.free_bytes == free_bytes
    pinned.map(address, chunk, GRANULARITY)
    pinned.unmap(address, GRANULARITY)
    pinned.destroy(chunk)
    pinned.release(address, GRANULARITY)
    assert (pinned.free_bytes(), bindings.held) == (TOTAL, NOTHING)


def test_the_driver_is_started_when_it_is_opened(bindings):
    assert open_cuda(lambda name: {"cuda.bindings.driver": bindings}[name]).bindings is bindings
    assert bindings.calls["cuInit"] == 1


def test_without_a_driver_the_error_says_what_to_change(bindings):
    def load(name):
        raise ImportError(f"no {name}")

    with pytest.raises(InvalidSettings, match=r"device is cuda, .* ImportError: no cuda.* or set device to cpu"):
        open_cuda(load)
    bindings.fail_at("cuInit", 0, "CUDA_ERROR_NO_DEVICE")
    with pytest.raises(InvalidSettings, match="cuInit: CUDA_ERROR_NO_DEVICE"):
        open_cuda(lambda _: bindings)
