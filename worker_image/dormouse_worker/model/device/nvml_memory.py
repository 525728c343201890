"""What is free on a whole GPU, told without a context of one's own: NVML through `cuda.bindings`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def open_nvml_reader(uuid: str, load: Callable[[str], Any] = importlib.import_module) -> Callable[[], int] | None:
    """Return a reader of the device's free bytes; None, and a line in the log, where NVML can not be used."""
    try:
        nvml = load("cuda.bindings.nvml")
        nvml.init_v2()
        handle = nvml.device_get_handle_by_uuid(uuid)
        nvml.device_get_memory_info_v2(handle)
    except Exception as error:  # noqa: BLE001  no package, no library, no such device: each in an error of its own
        logger.warning("%s: NVML can not be used: %s: %s", uuid, type(error).__name__, error)
        return None
    return lambda: int(nvml.device_get_memory_info_v2(handle).free)
