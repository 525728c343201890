"""The worker on a GPU: memory in arenas of the driver's own, and graphs of decode steps that outlive every sleep."""

from __future__ import annotations

from dormouse_worker.executor.worker.on_gpu import OnGpu
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.graphs import CudaGraphMaker, GraphMaker
from dormouse_worker.model.promised_tokens import CudaTokenCopy, TokenCopier


class GpuWorker(OnGpu, RankWorker):
    """A `RankWorker` on a GPU."""

    def make_graph_maker(self) -> GraphMaker:
        """See `RankWorker`."""
        return CudaGraphMaker()

    def make_token_copier(self) -> TokenCopier:
        """See `RankWorker`."""
        return CudaTokenCopy
