"""The mapping of NVML's bindings: which device, what an answer means, and that a device that is gone has one name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from enum import IntEnum
from types import SimpleNamespace

import pytest

from dormouse_worker.model.memory.gpu_health import GpuLost, HealthCheck
from dormouse_worker.model.memory.nvml import UNKNOWN_BYTES, open_nvml


class NvmlError(Exception):
    """As the bindings call it; so the next ones."""


class NvmlTimeoutError(NvmlError):
    """Nothing happened."""


class NotSupportedError(NvmlError):
    """This device cannot."""


class GpuIsLostError(NvmlError):
    """The device does not answer."""


class EventType(IntEnum):
    """Two of them."""

    DOUBLE_BIT_ECC_ERROR = 2
    XID_CRITICAL_ERROR = 8


class Bindings:
    """As much of `cuda.bindings.nvml` as we call, over two devices, of which the second has a slice."""

    NvmlError, NotSupportedError, EventType = NvmlError, NotSupportedError, EventType
    MemoryErrorType = SimpleNamespace(CORRECTED=0, UNCORRECTED=1)
    EccCounterType = SimpleNamespace(VOLATILE_ECC=0, AGGREGATE_ECC=1)
    UUIDS = ("GPU-a", "GPU-b", "MIG-c")

    def __init__(self):
        self.fail_once = {}
        self.waiting = []
        self.registered = []
        self.processes = {}
        self.calls = []

    def _called(self, name):
        self.calls.append(name)
        if name in self.fail_once:
            raise self.fail_once.pop(name)

    def init_v2(self):
        self._called("init_v2")

    def device_get_handle_by_index_v2(self, index):
        self._called("by_index")
        return index

    def device_get_handle_by_uuid(self, uuid):
        if uuid not in self.UUIDS:
            raise NvmlError(f"no {uuid}")
        return self.UUIDS.index(uuid)

    def device_is_mig_device_handle(self, handle):
        return self.UUIDS[handle].startswith("MIG")

    def device_get_device_handle_from_mig_device_handle(self, handle):
        return handle - 1

    def device_get_uuid(self, handle):
        return self.UUIDS[handle]

    def event_set_create(self):
        return "events"

    def device_register_events(self, device, kinds, events):
        self._called("register")
        self.registered.append((device, kinds, events))

    def event_set_wait_v2(self, events, timeout_ms):
        assert (events, timeout_ms) == ("events", 0)
        self._called("wait")
        if not self.waiting:
            raise NvmlTimeoutError
        return self.waiting.pop(0)

    def device_get_total_ecc_errors(self, device, kind, since):
        assert (kind, since) == (1, 0)
        self._called("ecc")
        return 40 + device

    def device_get_compute_running_processes_v3(self, handle):
        self._called("processes")
        return self.processes.get(handle, [])


@pytest.fixture
def bindings():
    return Bindings()


def opened(bindings, visible_devices=None):
    return open_nvml(visible_devices, load=lambda _name: bindings)


@pytest.mark.parametrize(
    ("visible_devices", "uuid"),
    [(None, "GPU-a"), ("", "GPU-a"), ("1,0", "GPU-b"), ("GPU-b", "GPU-b"), ("MIG-c", "GPU-b")],
)
def test_the_first_visible_device_is_watched_and_of_a_slice_the_whole(bindings, visible_devices, uuid):
    nvml = opened(bindings, visible_devices)
    assert nvml.uuid == uuid
    assert bindings.registered == [(Bindings.UUIDS.index(uuid), 8, "events")]
    assert nvml.uncorrectable_ecc_errors() == 40 + Bindings.UUIDS.index(uuid)


def test_xids_come_one_by_one_and_a_time_out_is_none(bindings):
    nvml = opened(bindings)
    bindings.waiting = [
        SimpleNamespace(event_type=8, event_data=79),
        SimpleNamespace(event_type=2, event_data=1),  # another kind of event
    ]
    assert [nvml.next_xid() for _ in range(3)] == [79, None, None]


def test_memory_is_read_of_the_slice_itself_and_what_is_not_available_is_left_out(bindings):
    process = SimpleNamespace
    bindings.processes[2] = [
        process(pid=11, used_gpu_memory=1000),
        process(pid=12, used_gpu_memory=UNKNOWN_BYTES),
    ]
    assert opened(bindings, "MIG-c").memory_by_pid() == {11: 1000}


def test_processes_come_as_the_real_bindings_give_them(bindings):
    real = pytest.importorskip("cuda.bindings.nvml")
    for count in (0, 1, 2):
        bindings.processes[0] = shown = real.ProcessInfo(count)
        for i in range(count):
            shown[i].pid, shown[i].used_gpu_memory = 11 + i, 1000 + i
        assert opened(bindings).memory_by_pid() == {11 + i: 1000 + i for i in range(count)}


def test_what_a_device_does_not_offer_is_left_out(bindings, caplog):
    bindings.fail_once = {"register": NotSupportedError(), "ecc": NotSupportedError(), "processes": NvmlError()}
    nvml = opened(bindings)
    assert "only its counts are watched" in caplog.text
    assert (nvml.next_xid(), nvml.uncorrectable_ecc_errors(), nvml.memory_by_pid()) == (None, None, {})


@pytest.mark.parametrize("call", ["wait", "ecc"])
def test_a_lost_device_is_a_fault_whoever_notices(bindings, call):
    nvml = opened(bindings)
    bindings.fail_once[call] = GpuIsLostError()
    fault = HealthCheck(nvml).look()
    assert str(fault) == "fault on GPU-a: the driver has lost the GPU (GpuIsLostError)"


def test_a_device_that_is_lost_from_the_start_is_not_taken_for_none(bindings):
    bindings.fail_once["by_index"] = GpuIsLostError()
    with pytest.raises(GpuLost, match="the driver has lost the GPU"):
        opened(bindings)


def test_a_machine_without_nvml_is_told_in_the_log_and_goes_on(caplog):
    assert open_nvml(None, load=lambda name: __import__("no_" + name)) is None
    assert "the GPU's health is not watched: NVML cannot be used: ModuleNotFoundError" in caplog.text


def test_a_device_that_nvml_does_not_know_is_told_in_the_log_and_goes_on(bindings, caplog):
    assert opened(bindings, "GPU-x") is None
    assert "the GPU's health is not watched: NvmlError: no GPU-x" in caplog.text


STUB_DRIVER = r"""
#include <string.h>
struct event { void *device; unsigned long long type, data; unsigned gi, ci; };
struct process { unsigned pid; unsigned long long bytes; unsigned gi, ci; };
static int waits;
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return "said the stub"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)0x10; return 0; }
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is_mig) { *is_mig = 0; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { strncpy(uuid, "GPU-stub", size); return 0; }
int nvmlEventSetCreate(void **events) { *events = (void *)0x20; return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *events) { return kinds == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *events, struct event *event, unsigned timeout_ms) {
  if (++waits == 1) return 10; /* time-out */
  if (waits > 2) return 15;    /* the GPU is lost */
  memset(event, 0, sizeof *event);
  event->type = 8;
  event->data = 79;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *count) { return 3; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *shown) {
  if (*count < 1 || !shown) { *count = 1; return 7; }
  memset(shown, 0, sizeof *shown);
  shown->pid = 4242;
  shown->bytes = 1000;
  *count = 1;
  return 0;
}
"""
LOOKS = """
from dormouse_worker.model.memory.gpu_health import HealthCheck
from dormouse_worker.model.memory.nvml import open_nvml

nvml = open_nvml(None)
print(nvml, dict(nvml.memory_by_pid()), nvml.uncorrectable_ecc_errors())
check = HealthCheck(nvml)
for _ in range(3):
    print(check.look())
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build a driver that says what we want")
def test_the_real_bindings_over_a_driver_of_ours_say_what_the_driver_says(tmp_path):
    pytest.importorskip("cuda.bindings.nvml")
    source = tmp_path / "stub.c"
    source.write_text(STUB_DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOOKS], env=environ, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "DriverNvml(GPU-stub) {4242: 1000} None",
        "None",
        "Xid 79 on GPU-stub: the GPU has fallen off the bus",
        "fault on GPU-stub: the driver has lost the GPU (GpuIsLostError)",
    ]


def test_the_names_that_we_call_are_those_of_the_real_bindings():
    """The only check of them where there is no GPU."""
    real = pytest.importorskip("cuda.bindings.nvml")
    functions = {name for name in vars(Bindings) if not name.startswith("_") and name != "UUIDS"}
    assert {name for name in functions if not hasattr(real, name)} == set()
    for enum, member in (
        ("EventType", "XID_CRITICAL_ERROR"),
        ("MemoryErrorType", "UNCORRECTED"),
        ("EccCounterType", "VOLATILE_ECC"),
    ):
        assert int(getattr(getattr(real, enum), member)) == int(getattr(getattr(Bindings, enum), member))
