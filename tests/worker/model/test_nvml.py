"""The mapping of NVML's bindings: which device, what an answer means, and that a device that is gone has one name."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace

import pytest

from dormouse_worker.model.gpu_health import GpuLost, HealthCheck
from dormouse_worker.model.nvml import UNKNOWN_BYTES, open_nvml


class NvmlError(Exception):
    """As the bindings call it; so the next ones."""


class NvmlTimeoutError(NvmlError):
    """Nothing happened."""


class NotSupportedError(NvmlError):
    """This device can not."""


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
    assert "the GPU's health is not watched: NVML can not be used: ModuleNotFoundError" in caplog.text


def test_a_device_that_nvml_does_not_know_is_told_in_the_log_and_goes_on(bindings, caplog):
    assert opened(bindings, "GPU-x") is None
    assert "the GPU's health is not watched: NvmlError: no GPU-x" in caplog.text


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
