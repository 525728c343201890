"""A GPU as a device: copies in slices on a queue of their own, ordered and awaited."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.errors import InvalidSettings
from dormouse_worker.host import Host
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.cuda import CudaDevice, cut, open_cuda_device
from dormouse_worker.model.device.cuda_calls import CudaCalls
from dormouse_worker.model.device.cuda_driver import CudaDriver
from dormouse_worker.model.device.host_driver import HostDriver
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
    return CudaDevice(memory, PinnedDriver(calls, memory, HostDriver(lambda: TOTAL)), queue)


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
    assert device.name == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
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
