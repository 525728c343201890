"""A GPU as a device: copies in slices on a queue of their own, ordered and awaited."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.common.errors import InvalidSettings, WrongDevice
from dormouse_worker.common.host import Host
from dormouse_worker.model.device.accounting import CONTEXT_BYTES, LIBRARIES_BYTES, Change
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.cuda import CudaDevice, cut, open_cuda_device, open_memory, with_libraries
from dormouse_worker.model.device.cuda_calls import CudaCalls
from dormouse_worker.model.device.cuda_driver import CudaDriver
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.nvml_memory import Found, find_device
from dormouse_worker.model.device.pinned import PinnedDriver
from dormouse_worker.model.device.testing_cuda import GRANULARITY, FakeCudaBindings, view_host_memory

TOTAL = 64 << 20


class RecordingQueue:
    """Implements `CopyQueue`: what is copied while it is open, and whether somebody waited."""

    def __init__(self):
        self.events = []

    @contextlib.contextmanager
    def open(self):
        self.events.append("open")
        yield
        self.events.append("close")

    def wait(self):
        self.events.append("wait")


@pytest.fixture
def queue():
    return RecordingQueue()


@pytest.fixture
def device(queue):
    calls = CudaCalls(FakeCudaBindings(TOTAL))
    memory = CudaDriver(calls, 0, view_host_memory)
    copies = PinnedDriver(calls, memory, HostDriver(lambda: TOTAL))
    return CudaDevice(memory, copies, queue, Change(1, is_certain=True), name="GPU-1")


def fill(driver):
    arena = Arena("weights", driver, 8 * GRANULARITY, chunk_bytes=2 * GRANULARITY)
    arena.prepare(7 * GRANULARITY)
    arena.map()
    return arena, arena.tensor(0, [7 * GRANULARITY], torch.uint8)


def test_a_copy_goes_either_way_and_is_awaited(device, queue):
    (host_arena, host), (arena, there) = fill(device.copies), fill(device.memory)
    host.copy_(torch.arange(len(host)))
    device.copy(there, host)
    assert queue.events == ["open", "close", "wait"]
    assert torch.equal(there, host)
    there += 1
    device.copy(host, there)
    assert torch.equal(there, host)
    host_arena.close()
    arena.close()


def test_a_device_says_which_it_is(device):
    assert device.name == "GPU-1"
    assert (device.capability, device.torch_device) == ((9, 0), torch.device("cuda", 0))
    assert repr(device).startswith(f"CudaDevice({device.name}, CudaDriver(0, 0 chunks")


@pytest.mark.parametrize(
    ("num_bytes", "seams", "expected"),
    [
        (0, [], []),
        (10, [], [(0, 4), (4, 8), (8, 10)]),
        (10, [5], [(0, 4), (4, 5), (5, 9), (9, 10)]),
        (8, [4], [(0, 4), (4, 8)]),
    ],
)
def test_slices_end_at_seams(num_bytes, seams, expected):
    assert list(cut(num_bytes, seams, 4)) == expected


@given(st.integers(0, 200), st.sets(st.integers(1, 199)), st.integers(1, 50))
def test_slices_cover_everything_once_and_pass_no_seam(num_bytes, points, slice_bytes):
    seams = sorted(point for point in points if point < num_bytes)
    slices = list(cut(num_bytes, seams, slice_bytes))
    assert [place for start, end in slices for place in range(start, end)] == list(range(num_bytes))
    assert all(0 < end - start <= slice_bytes for start, end in slices)
    assert not any(start < seam < end for start, end in slices for seam in seams)


def test_without_a_gpu_no_device_is_opened():
    def open_calls():
        raise InvalidSettings("no driver")

    with pytest.raises(InvalidSettings, match="no driver"):
        open_cuda_device(Host(), open_calls=open_calls)


CONTEXT = 300 << 10


@pytest.fixture
def bindings():
    bindings = FakeCudaBindings(TOTAL)
    bindings.context_bytes = CONTEXT
    return bindings


def test_the_context_is_measured_by_making_it_until_two_makings_agree(bindings):
    memory, context = open_memory(CudaCalls(bindings), 0, bindings.free_bytes)
    assert context == Change(CONTEXT, is_certain=True)
    assert bindings.calls["cuDevicePrimaryCtxRetain"] == 2
    assert memory.free_bytes() == TOTAL - CONTEXT


class BusyBindings(FakeCudaBindings):
    """The neighbour takes memory in the middle of the first making."""

    def cuDevicePrimaryCtxRetain(self, device):  # noqa: N802  # the driver's name
        if not self.calls["cuDevicePrimaryCtxRetain"]:
            self.take(16 << 20)
        return super().cuDevicePrimaryCtxRetain(device)


def test_a_neighbour_that_moves_while_the_context_is_made_changes_nothing():
    bindings = BusyBindings(TOTAL)
    bindings.context_bytes = CONTEXT
    assert open_memory(CudaCalls(bindings), 0, bindings.free_bytes)[1] == Change(CONTEXT, is_certain=True)
    assert bindings.calls["cuDevicePrimaryCtxRetain"] == 3


@pytest.mark.parametrize("free_bytes", [None, iter(range(1000)).__next__])
def test_a_context_that_can_not_be_measured_is_guessed(bindings, free_bytes):
    """Nobody reads, or the neighbour frees all the time, so that it seems to cost less than nothing."""
    assert open_memory(CudaCalls(bindings), 0, free_bytes)[1] == Change(CONTEXT_BYTES, is_certain=False)
    assert bindings.has_context


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (Change(20, is_certain=True), Change(CONTEXT + 20, is_certain=True)),
        (Change(20, is_certain=False), Change(CONTEXT + 20, is_certain=False)),
        (Change(-1, is_certain=True), Change(CONTEXT + LIBRARIES_BYTES, is_certain=False)),
        (Change(2 << 30, is_certain=True), Change(CONTEXT + LIBRARIES_BYTES, is_certain=False)),
    ],
)
def test_what_libraries_load_counts_with_the_context_or_is_guessed(libraries, expected):
    assert with_libraries(Change(CONTEXT, is_certain=True), libraries) == expected


class FakeNvml:
    """Stands in for the module `cuda.bindings.nvml`."""

    def __init__(self, uuid):
        self._uuid, self.is_started = uuid, False

    def init_v2(self):
        self.is_started = True

    def device_get_handle_by_uuid(self, uuid):
        assert self.is_started
        if uuid != self._uuid:
            raise LookupError("not found")
        return 7

    def device_get_memory_info_v2(self, handle):
        assert handle == 7
        return SimpleNamespace(free=123)


@pytest.mark.parametrize("known", ["GPU-1", "MIG-1"])
def test_a_device_has_the_name_that_nvml_knows_and_its_free_memory_is_read_without_a_context(caplog, known):
    found = find_device(["GPU-1", "MIG-1"], lambda _: FakeNvml(known))
    assert (found.name, found.free_bytes()) == (known, 123)
    assert not caplog.text


def test_a_device_that_nvml_does_not_know_is_taken_as_a_whole_gpu_that_nobody_reads(caplog):
    assert find_device(["GPU-2", "MIG-2"], lambda _: FakeNvml("GPU-1")) == Found("GPU-2", None)
    assert "GPU-2 or MIG-2: NVML cannot be used: LookupError: not found" in caplog.text


def test_a_driver_too_old_is_told_before_a_context_is_made(bindings, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    bindings.version = 12040
    with pytest.raises(InvalidSettings, match="driver offers CUDA 12"):
        open_cuda_device(Host(), open_calls=lambda: CudaCalls(bindings))
    assert not bindings.has_context


def test_another_device_than_the_granted_one_is_told_before_a_context_is_made(bindings, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    bindings.version = 12040
    granted = "GPU-00000000-0000-0000-0000-000000000001"
    with pytest.raises(WrongDevice, match=f"this worker sees the device GPU-.*, and was granted {granted}"):
        open_cuda_device(Host(), open_calls=lambda: CudaCalls(bindings), expected=granted)
    assert not bindings.has_context
