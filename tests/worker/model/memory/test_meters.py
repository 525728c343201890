"""What a worker takes of its device, measured beside neighbours that come and go."""

import gc
import subprocess
import sys

import pytest
import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.accounting import DEVICE_FREE_MEMORY, LIBRARIES_BYTES, NVML, Change, DeviceAccount
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.cuda import CudaDevice
from dormouse_worker.model.device.cuda_calls import CudaCalls
from dormouse_worker.model.device.cuda_driver import CudaDriver
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.pinned import PinnedDriver
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.device.testing_cuda import FakeCudaBindings, view_host_memory
from dormouse_worker.model.memory.arithmetic import RESIDENT_MEMORY, Limit
from dormouse_worker.model.memory.meters import DeviceMeter, HostPool, make_meter
from dormouse_worker.model.memory.resident import ResidentMeter

MIB = 1 << 20
TOTAL = 4096 * MIB
WEIGHTS = 64 * MIB
ACTIVATIONS = 96 * MIB
LIBRARIES = 40 * MIB
SLACK = ACTIVATIONS // 2  # resident memory moves for reasons of its own: the system takes pages of files back
SETTINGS = EngineSettings(model="m")


def allocate(num_bytes):
    """Do what a forward pass does: take memory, touch it, let it go."""
    torch.ones(num_bytes, dtype=torch.uint8)


@pytest.fixture(autouse=True)
def _collected():
    """Let what other tests left go before anything is measured, not meanwhile."""
    gc.collect()


@pytest.fixture
def device():
    """Return the device that is not there, with weights in an arena and a neighbour of a gigabyte."""
    device = FakeDevice(FakeCudaDriver(TOTAL))
    device.memory.take(1024 * MIB)
    arena = Arena("weights", device.memory, WEIGHTS)
    arena.prepare(WEIGHTS)
    arena.map()
    yield device
    arena.close()


def measure(device, *, while_warming=0, at_the_peak=0, nvml=lambda: None):
    """Measure a worker whose libraries take memory once, while a neighbour moves in either part."""
    meter = make_meter(device, Host(), SETTINGS, nvml)
    meter.open()

    def warm_up():
        allocate(MIB)
        device.memory.take(LIBRARIES + while_warming)

    def peak():
        allocate(ACTIVATIONS)
        device.memory.take(at_the_peak)

    return meter.measure(WEIGHTS, warm_up=warm_up, peak=peak, graph_bytes=5)


def test_every_share_of_a_device_is_found(device):
    measured = measure(device)
    assert (measured.weights_bytes, measured.non_torch_bytes, measured.graph_bytes) == (WEIGHTS, LIBRARIES, 5)
    assert ACTIVATIONS - SLACK < measured.peak_activation_bytes < ACTIVATIONS + SLACK
    assert measured.measured_by == DEVICE_FREE_MEMORY
    assert measured.seconds > 0


@pytest.mark.parametrize("moved", [512 * MIB, -512 * MIB])
def test_a_neighbour_that_moves_while_the_largest_batch_runs_changes_nothing(device, moved):
    measured = measure(device, at_the_peak=moved)
    assert measured.non_torch_bytes == LIBRARIES
    assert ACTIVATIONS - SLACK < measured.peak_activation_bytes < ACTIVATIONS + SLACK


@pytest.mark.parametrize("moved", [1536 * MIB, -512 * MIB])
def test_a_neighbour_that_moves_while_libraries_are_loaded_is_told_from_them(device, moved):
    assert measure(device, while_warming=moved).non_torch_bytes == LIBRARIES_BYTES


def test_nvml_where_it_shows_us_sees_no_neighbour_at_all(device):
    measured = measure(device, while_warming=200 * MIB, nvml=lambda: WEIGHTS + LIBRARIES)
    assert (measured.non_torch_bytes, measured.measured_by) == (LIBRARIES, NVML)


def test_the_limit_of_a_device_is_its_memory_whoever_uses_it(device):
    meter = make_meter(device, Host(), SETTINGS)
    assert meter.limit() == Limit(TOTAL, is_known=True, name="device memory")
    assert meter.own_bytes() == WEIGHTS
    assert (meter.rest_bytes(), meter.free_bytes()) == (WEIGHTS, TOTAL - 1024 * MIB - WEIGHTS)
    assert meter.measured_by == DEVICE_FREE_MEMORY


def test_graphs_that_are_made_later_count_from_then_on(device):
    meter = make_meter(device, Host(), SETTINGS)
    neighbour = iter([100 * MIB])

    def capture():
        device.memory.take(30 * MIB + next(neighbour, 0))

    def drop():
        device.memory.give(30 * MIB)

    for _ in range(2):  # another cache, and graphs anew
        assert meter.measure_part("graphs", capture, drop) == 30 * MIB
        assert meter.own_bytes() == WEIGHTS + 30 * MIB
        drop()


def test_what_torch_takes_for_a_part_belongs_to_it():
    driver, torch_bytes = FakeCudaDriver(TOTAL), 0

    def capture():
        nonlocal torch_bytes
        torch_bytes += 20 * MIB
        driver.take(20 * MIB + 7 * MIB)

    meter = DeviceMeter(DeviceAccount(driver, lambda: torch_bytes, lambda: None), HostPool(Host()))
    assert meter.measure_part("graphs", capture) == 27 * MIB


def test_what_is_made_later_on_the_cpu_is_what_becomes_resident():
    kept = []
    meter = make_meter(CpuDevice(Host()), Host(), SETTINGS)
    made = meter.measure_part("graphs", lambda: kept.append(torch.ones(ACTIVATIONS, dtype=torch.uint8)))
    assert ACTIVATIONS - SLACK < made < ACTIVATIONS + SLACK


def test_a_gpus_context_counts_from_the_start():
    bindings = FakeCudaBindings(TOTAL)
    calls = CudaCalls(bindings)
    memory = CudaDriver(calls, 0, view_host_memory)
    copies = PinnedDriver(calls, memory, HostDriver(lambda: TOTAL))
    meter = make_meter(
        CudaDevice(memory, copies, None, Change(300 * MIB, is_certain=True), name="GPU-1"), Host(), SETTINGS
    )
    assert repr(meter) == "DeviceMeter(DeviceAccount(context 314572800), CudaPool(cuda:0))"


NEIGHBOUR = """
import mmap, sys
for line in sys.stdin:
    memory = mmap.mmap(-1, int(line))
    memory.write(b"x" * len(memory))
    print("taken", flush=True)
    memory.close()
"""


def test_another_process_that_takes_and_gives_memory_changes_nothing_on_the_cpu():
    meter = make_meter(CpuDevice(Host()), Host(), SETTINGS)
    assert isinstance(meter, ResidentMeter)
    assert meter.measured_by == RESIDENT_MEMORY
    meter.open()
    program = [sys.executable, "-c", NEIGHBOUR]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as neighbour:

        def peak():
            print(256 * MIB, file=neighbour.stdin, flush=True)
            assert neighbour.stdout.readline() == "taken\n"
            allocate(ACTIVATIONS)

        free_bytes = meter.free_bytes()
        measured = meter.measure(0, warm_up=lambda: allocate(MIB), peak=peak, graph_bytes=5)
        neighbour.stdin.close()
    assert ACTIVATIONS - SLACK < measured.peak_activation_bytes < ACTIVATIONS + SLACK
    assert (measured.graph_bytes, measured.measured_by) == (0, RESIDENT_MEMORY)
    assert free_bytes > 0
    assert meter.rest_bytes() > meter.own_bytes() > 100 * MIB
