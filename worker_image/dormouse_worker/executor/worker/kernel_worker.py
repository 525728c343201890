"""What workers that never import torch do alike: they need our kernels, ask them how they are, and are not traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from dormouse_worker.common.errors import Internal, InvalidArgument, InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.worker.sleeping_worker import SleepingWorker
from dormouse_worker.native.library import Missing, load_kernels


class KernelWorker(SleepingWorker):
    """Stands before the class that says what is computed, if there is one."""

    def __init__(self, settings: EngineSettings, rank: int, *more: Any) -> None:
        """Raises InvalidSettings where there are no kernels."""
        super().__init__(settings, rank, *more)
        kernels = load_kernels()
        if isinstance(kernels, Missing):
            raise InvalidSettings(f"an engine without torch needs our kernels: {kernels.reason}")
        self._kernels = kernels

    def check_health(self) -> None:
        """See `WorkerBase`. Lets the kernels look at one small array."""
        ones = np.ones(8, dtype=np.float32)
        if not self._kernels.are_finite(ones.ctypes.data, ones.nbytes, ones.itemsize, 0x7F80_0000):
            raise Internal("the kernels find eight ones infinite")

    def start_profile(self, directory: str) -> None:
        """See `WorkerBase`. Raises InvalidArgument: a trace shows torch's operations."""
        raise InvalidArgument(
            f"directory is {directory!r}; torch's profiler sees nothing of an engine without torch: start it with "
            "engine-runtime torch"
        )
