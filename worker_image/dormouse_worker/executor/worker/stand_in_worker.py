"""The worker on a stand-in device: what a GPU's worker does with memory, computed on the processor."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.ledger_driver import LedgerDriver
from dormouse_worker.model.device.stand_in import StandInDevice, open_stand_in


class StandInWorker(RankWorker):
    """A `RankWorker` on a `StandInDevice`. Passes take what the profile measured, from the first one to a sleep."""

    _stand_in: StandInDevice | None = None

    def make_device(self) -> StandInDevice:
        """See `DeviceWorker`."""
        self._stand_in = open_stand_in(
            self.host,
            index=self.layout.tensor_rank,
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
        memory = self._memory()  # its arenas hold the weights, in whole pages: what these have to spare was counted too
        memory.expect_activations(max(0, report.weights_bytes + report.peak_activation_bytes - memory.used_bytes))
        return counts

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `WorkerBase`. Raises OutOfMemoryError, as a pass on a GPU does."""
        try:
            self._memory().take_activations()
        except DeviceOutOfMemory as error:
            raise torch.OutOfMemoryError(f"activations: {error}") from error
        return super().submit(batch)

    def _memory(self) -> LedgerDriver:
        assert self._stand_in is not None, "init_device comes first"
        return self._stand_in.memory
