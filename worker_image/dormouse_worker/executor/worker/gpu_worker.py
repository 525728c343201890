"""The worker on a GPU: memory in arenas of the driver's own, and graphs of decode steps that outlive every sleep."""

from __future__ import annotations

from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.device.cuda import open_cuda_device
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.graphs import CudaGraphMaker, GraphMaker
from dormouse_worker.model.memory.gpu_health import GpuLost, Nvml, own_bytes
from dormouse_worker.model.memory.nvml import open_nvml
from dormouse_worker.model.promised_tokens import CudaTokenCopy, TokenCopier


class GpuWorker(RankWorker):
    """A `RankWorker` on a GPU."""

    _nvml: Nvml | None = None

    def make_device(self) -> Device:
        """See `DeviceWorker`."""
        device = open_cuda_device(self.host, expected=self.settings.expected_device)
        self._nvml = open_nvml(device.name)
        return device

    def nvml_own_bytes(self) -> int | None:
        """See `DeviceWorker`. A device that is lost tells nothing here: who watches it ends this process."""
        try:
            return None if self._nvml is None else own_bytes(self._nvml, self.host)
        except GpuLost:
            return None

    def make_graph_maker(self) -> GraphMaker:
        """See `RankWorker`."""
        return CudaGraphMaker()

    def make_token_copier(self) -> TokenCopier:
        """See `RankWorker`."""
        return CudaTokenCopy
