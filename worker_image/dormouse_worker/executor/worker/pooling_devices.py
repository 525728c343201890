"""Workers that make vectors, by device. Each opens its device as the worker that generates does."""

from __future__ import annotations

import torch

from dormouse_worker.engine.pooling.batch import PoolingBatch
from dormouse_worker.engine.pooling.executor import PassUnderWay
from dormouse_worker.executor.worker.on_gpu import OnGpu
from dormouse_worker.executor.worker.pooling_worker import PoolingWorker
from dormouse_worker.executor.worker.torch_worker import TorchWorker
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.ledger_driver import LedgerDriver
from dormouse_worker.model.device.stand_in import StandInDevice, open_stand_in
from dormouse_worker.model.pooling.loader import LoadedPooler, load_pooler


class TorchPoolingWorker(TorchWorker, PoolingWorker):
    """A `PoolingWorker` of transformers' modules; a subclass says which device it is."""

    def make_pooler(self) -> LoadedPooler:
        """See `PoolingWorker`."""
        return load_pooler(self.settings, self.device)


class CpuPoolingWorker(TorchPoolingWorker):
    """A `PoolingWorker` on the CPU."""

    def make_device(self) -> CpuDevice:
        """See `DeviceWorker`."""
        return CpuDevice(self.host)


class GpuPoolingWorker(OnGpu, TorchPoolingWorker):
    """A `PoolingWorker` on a GPU."""


class StandInPoolingWorker(TorchPoolingWorker):
    """A `PoolingWorker` on a `StandInDevice`. Passes take what the profile measured, from the first one to a sleep."""

    _stand_in: StandInDevice | None = None

    def make_device(self) -> StandInDevice:
        """See `DeviceWorker`."""
        self._stand_in = open_stand_in(
            self.host,
            index=0,
            wanted=self.settings.expected_device,
            budget_bytes=self.settings.device_memory_budget_bytes,
        )
        return self._stand_in

    def nvml_own_bytes(self) -> int | None:
        """See `TorchWorker`. The books know, as NVML does."""
        return None if self._stand_in is None else self._stand_in.memory.own_bytes()

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`."""
        counts = super().determine_num_available_blocks()
        report = self.get_memory_report()
        assert report is not None, "it was just made"
        memory = self._memory()
        memory.expect_activations(max(0, report.weights_bytes + report.peak_activation_bytes - memory.used_bytes))
        return counts

    def begin_pooling(self, batch: PoolingBatch) -> PassUnderWay:
        """See `PoolingWorker`. Raises OutOfMemoryError, as a pass on a GPU does."""
        try:
            self._memory().take_activations()
        except DeviceOutOfMemory as error:
            raise torch.OutOfMemoryError(f"activations: {error}") from error
        return super().begin_pooling(batch)

    def _memory(self) -> LedgerDriver:
        assert self._stand_in is not None, "init_device comes first"
        return self._stand_in.memory
