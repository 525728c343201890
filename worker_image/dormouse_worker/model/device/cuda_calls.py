"""Calls of the CUDA driver through `cuda.bindings`: the one place where its results become our values and errors."""

from __future__ import annotations

import errno
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.device.driver import DeviceOutOfMemory

KNOB = "the machine's NVIDIA driver must be visible here; or set device to cpu"


class CudaError(OSError):
    """A call of the driver failed; says which call and with which code."""

    def __init__(self, call: str, code: int, name: str) -> None:
        lacks_memory = name == "CUDA_ERROR_OUT_OF_MEMORY"  # or addresses
        super().__init__(errno.ENOMEM if lacks_memory else errno.EIO, f"{call}: {name} ({code})")
        self.call, self.code = call, code

    def __str__(self) -> str:
        """Return the sentence; the number in front would be the operating system's."""
        return str(self.strerror)


class CudaCalls:
    """Calls functions of `cuda.bindings.driver` by name. Stateless, safe in any thread."""

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings

    def __repr__(self) -> str:
        return f"CudaCalls({self.bindings!r})"

    def call(self, name: str, *arguments: Any, wanted_bytes: int = 0) -> Any:
        """Return what the function gives beside its code: nothing, one value or a tuple.

        Raises DeviceOutOfMemory if memory is missing for `wanted_bytes`, CudaError for everything else.
        """
        code, *values = getattr(self.bindings, name)(*arguments)
        results = self.bindings.CUresult
        if code == results.CUDA_ERROR_OUT_OF_MEMORY and wanted_bytes:
            raise DeviceOutOfMemory(wanted_bytes, self._free_bytes())
        if code != results.CUDA_SUCCESS:
            raise CudaError(name, int(code), getattr(code, "name", "unknown"))
        return values[0] if len(values) == 1 else tuple(values)

    def _free_bytes(self) -> int:
        """Return what is free for the words of an error; 0 where even that cannot be told."""
        code, *values = self.bindings.cuMemGetInfo()
        return int(values[0]) if code == self.bindings.CUresult.CUDA_SUCCESS else 0


def require_driver(calls: CudaCalls, built_for: str | None) -> None:
    """Raise InvalidSettings if the driver is too old for the CUDA release that torch was built for, "13.2" for example.

    A driver serves every minor release of its major one. None = torch was built without CUDA and says so itself.
    """
    if built_for is None:
        return
    version = int(calls.call("cuDriverGetVersion"))
    major, minor = version // 1000, version % 1000 // 10
    if major < int(built_for.partition(".")[0]):
        raise InvalidSettings(
            f"device is cuda, and this machine's NVIDIA driver offers CUDA {major}.{minor}; this image needs CUDA "
            f"{built_for.partition('.')[0]}.0 or later: install a newer driver on the node, or choose another node"
        )


def require_capability(capability: tuple[int, int], arch_list: Sequence[str]) -> None:
    """Raise InvalidSettings for a device that is older than all that torch was compiled for.

    `arch_list` is torch's: "sm_75", "sm_90a", "compute_120", …; empty where torch does not tell.
    """
    numbers = sorted(int(match[1]) for arch in arch_list if (match := re.search(r"_(\d+)", arch)))
    major, minor = capability
    if numbers and major * 10 + minor < numbers[0]:
        oldest = f"{numbers[0] // 10}.{numbers[0] % 10}"
        raise InvalidSettings(
            f"device is cuda, and this GPU has compute capability {major}.{minor}; this image computes on {oldest} and "
            "later: choose a node with a newer GPU"
        )


def open_cuda(load: Callable[[str], Any] = importlib.import_module) -> CudaCalls:
    """Load the bindings and start the driver. Raises InvalidSettings where there is none."""
    try:
        calls = CudaCalls(load("cuda.bindings.driver"))
        calls.call("cuInit", 0)
    except Exception as error:  # no package, no library, no device: each in an error of its own
        raise InvalidSettings(
            f"device is cuda, which cannot be used: {type(error).__name__}: {error}; {KNOB}"
        ) from error
    return calls
