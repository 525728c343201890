"""What is free on a whole GPU, told without a context of one's own: NVML through `cuda.bindings`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A device as NVML knows it."""

    name: str  # its UUID as nvidia-smi writes it
    free_bytes: Callable[[], int] | None  # reads what is free on it; None where NVML cannot be used


def find_device(names: Sequence[str], load: Callable[[str], Any] = importlib.import_module) -> Found:
    """Return the device under the one of its names that NVML knows; under the first one where NVML knows none.

    A line in the log says why it cannot be used.
    """
    failures = []
    for name in names:
        try:
            return Found(name, _open_reader(name, load))
        except Exception as error:  # noqa: BLE001  no package, no library, no such device: each in an error of its own
            failures.append(f"{type(error).__name__}: {error}")
    logger.warning("%s: NVML cannot be used: %s", " or ".join(names), "; ".join(dict.fromkeys(failures)))
    return Found(names[0], None)


def _open_reader(name: str, load: Callable[[str], Any]) -> Callable[[], int]:
    nvml = load("cuda.bindings.nvml")
    nvml.init_v2()
    handle = nvml.device_get_handle_by_uuid(name)
    nvml.device_get_memory_info_v2(handle)
    return lambda: int(nvml.device_get_memory_info_v2(handle).free)
