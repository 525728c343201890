"""A worker on processors that a test ends in the middle of loading an adapter.

It obeys a file beside its model: `die` names the phase in which the engine kills itself, `stop` the one in which it
stops for good, once. Phases are what a load does outside this process's memory, in their order.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from dormouse_worker.model.slim_imports import import_slim

import_slim()  # before anything else imports transformers: for a worker's own class nobody else does it

import torch  # noqa: E402  # see above

from dormouse_worker.common.adapters import AdapterInfo  # noqa: E402
from dormouse_worker.common.errors import WorkerError  # noqa: E402
from dormouse_worker.common.host import Host  # noqa: E402
from dormouse_worker.common.settings import EngineSettings  # noqa: E402
from dormouse_worker.executor.worker.cpu_worker import CpuWorker  # noqa: E402
from dormouse_worker.files.adapter_files import CONFIG_FILE, WEIGHTS_FILE  # noqa: E402
from dormouse_worker.model.device.cpu import CpuDevice  # noqa: E402
from tests.integration.adapter_phases import DIE, STOP, STOPPED  # noqa: E402

_OPENS = {(CONFIG_FILE, 1): "configuration", (WEIGHTS_FILE, 1): "header", (WEIGHTS_FILE, 2): "matrices"}


class _FrailDevice(CpuDevice):
    """A `CpuDevice` that may end when an adapter comes into its slot."""

    def __init__(self, host: Host, reach: Callable[[str], None]) -> None:
        super().__init__(host)
        self._reach = reach

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        self._reach("slot")
        super().copy(target, source)


class FrailAdapterWorker(CpuWorker):
    """A `CpuWorker` whose adapters may be its end."""

    def __init__(self, settings: EngineSettings, rank: int) -> None:
        super().__init__(settings, rank)
        self._opened: dict[str, int] = {}
        self._is_loading = False
        sys.addaudithook(self._hear)

    def make_device(self) -> CpuDevice:
        """See `DeviceWorker`."""
        return _FrailDevice(self.host, self._reach)

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `WorkerBase`. Files are opened in a thread of their own, also when this is left."""
        if not self._is_loading:
            self._opened.clear()
            self._is_loading = True
            self._reach("order")
        try:
            info = super().add_lora(path, digest, seconds)
        except WorkerError:
            self._is_loading = False
            raise
        if info is not None:
            self._reach("answer")
            self._is_loading = False
        return info

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not self._is_loading:
            return
        name = Path(str(arguments[0])).name
        self._opened[name] = self._opened.get(name, 0) + 1
        if (phase := _OPENS.get((name, self._opened[name]))) is not None:
            self._reach(phase)

    def _reach(self, phase: str) -> None:
        for what in (DIE, STOP):
            order = self.settings.model_path / what
            if order.exists() and order.read_text() == phase:
                order.unlink()
                if what == DIE:
                    os.kill(os.getpid(), signal.SIGKILL)
                (self.settings.model_path / STOPPED).touch()
                signal.pause()
