"""The worker on a GPU: memory in arenas of the driver's own, and graphs of decode steps that outlive every sleep."""

from __future__ import annotations

from dormouse_worker.executor.rank_worker import RankWorker
from dormouse_worker.model.device.cuda import open_cuda_device
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.graphs import CudaGraphMaker, GraphMaker


class GpuWorker(RankWorker):
    """A `RankWorker` on a GPU."""

    def make_device(self) -> Device:
        """See `RankWorker`."""
        return open_cuda_device(self.host)

    def make_graph_maker(self) -> GraphMaker:
        """See `RankWorker`."""
        return CudaGraphMaker()
