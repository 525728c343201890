"""NVML through `cuda.bindings`, which torch's CUDA build brings along; mapped to `gpu_health.Nvml`.

Nothing here waits, so that a look takes no time, whoever takes it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dormouse_worker.model.memory.gpu_health import GpuLost

logger = logging.getLogger(__name__)

# What each error of the driver means for the device, by the class's name: older bindings lack some.
LOST: Mapping[str, str] = MappingProxyType(
    {
        "GpuIsLostError": "the driver has lost the GPU",
        "ResetRequiredError": "the GPU needs a reset",
        "GpuNotFoundError": "the driver does not find the GPU any more",
        "DriverNotLoadedError": "the driver was unloaded",
        "UninitializedError": "the driver was restarted",
        "LibRmVersionMismatchError": "the driver was replaced by another version",
    }
)
UNKNOWN_BYTES = (1 << 64) - 1  # the driver's word for 'not available'


class DriverNvml:
    """Implements `gpu_health.Nvml` for one device of this machine."""

    def __init__(self, bindings: Any, selector: str) -> None:
        """Find the device by `GPU-…` or `MIG-…` uuid, or by its index on the bus. Raises GpuLost."""
        self._nvml = bindings
        self.uuid = selector
        self._memory_handle = self._call(lambda: self._find(selector))
        self._device = self._call(lambda: self._whole_device(self._memory_handle))
        self.uuid = str(self._call(lambda: bindings.device_get_uuid(self._device)))
        self._events = self._call(self._register)

    def __repr__(self) -> str:
        return f"DriverNvml({self.uuid})"

    def next_xid(self) -> int | None:
        """See `Nvml`."""
        if self._events is None:
            return None
        try:
            event = self._call(lambda: self._nvml.event_set_wait_v2(self._events, 0))
        except self._nvml.NvmlError:  # a time-out: nothing happened
            return None
        is_xid = int(event.event_type) & int(self._nvml.EventType.XID_CRITICAL_ERROR)
        return int(event.event_data) if is_xid else None

    def uncorrectable_ecc_errors(self) -> int | None:
        """See `Nvml`."""
        kind, since = self._nvml.MemoryErrorType.UNCORRECTED, self._nvml.EccCounterType.VOLATILE_ECC
        try:
            return int(self._call(lambda: self._nvml.device_get_total_ecc_errors(self._device, kind, since)))
        except self._nvml.NvmlError:  # without ECC, or not switched on
            return None

    def memory_by_pid(self) -> Mapping[int, int]:
        """See `Nvml`."""
        try:
            shown = self._call(lambda: self._nvml.device_get_compute_running_processes_v3(self._memory_handle))
            processes = [(int(process.pid), int(process.used_gpu_memory)) for process in shown]
        except self._nvml.NvmlError:  # hidden from us
            return {}
        return {pid: num_bytes for pid, num_bytes in processes if num_bytes != UNKNOWN_BYTES}

    def _find(self, selector: str) -> Any:
        if selector.isdigit():
            return self._nvml.device_get_handle_by_index_v2(int(selector))
        return self._nvml.device_get_handle_by_uuid(selector)

    def _whole_device(self, handle: Any) -> Any:
        """Return the GPU that a MIG slice is part of: errors are told of whole devices only."""
        if self._nvml.device_is_mig_device_handle(handle):
            return self._nvml.device_get_device_handle_from_mig_device_handle(handle)
        return handle

    def _register(self) -> Any:
        """Return the set in which the device's critical errors arrive from now on; None where there are no events."""
        events = self._nvml.event_set_create()
        try:
            self._nvml.device_register_events(self._device, int(self._nvml.EventType.XID_CRITICAL_ERROR), events)
        except self._nvml.NotSupportedError:
            logger.warning("%s reports no errors as events; only its counts are watched", self.uuid)
            return None
        return events

    def _call(self, function: Callable[[], Any]) -> Any:
        """Map a device that is gone to GpuLost; whatever else the driver says passes."""
        try:
            return function()
        except self._nvml.NvmlError as error:
            name = type(error).__name__
            if name in LOST:
                raise GpuLost(f"{LOST[name]} ({name})") from error
            raise


def open_nvml(visible_devices: str | None, load: Callable[[str], Any] = importlib.import_module) -> DriverNvml | None:
    """Open the first device of `CUDA_VISIBLE_DEVICES` (None = of all); None, and a line in the log, without NVML.

    Indices count along the bus, as CUDA's do under CUDA_DEVICE_ORDER=PCI_BUS_ID. Raises GpuLost.
    """
    selector = (visible_devices or "0").split(",")[0].strip() or "0"
    try:
        bindings = load("cuda.bindings.nvml")
        bindings.init_v2()
    except Exception as error:  # noqa: BLE001  no package, no library, no driver: each in an error of its own
        logger.warning("the GPU's health is not watched: NVML cannot be used: %s: %s", type(error).__name__, error)
        return None
    try:
        return DriverNvml(bindings, selector)
    except bindings.NvmlError as error:
        logger.warning("the GPU's health is not watched: %s: %s", type(error).__name__, error)
        return None
