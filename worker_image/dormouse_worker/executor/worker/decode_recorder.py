"""Which decode steps are recorded as graphs, what that will take, and the graphs that there are."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.worker.recording import Recording, record
from dormouse_worker.model.attention.interface import AttentionBackend, is_graph_backend
from dormouse_worker.model.forward.in_torch import TorchForward
from dormouse_worker.model.graphs import DecodeGraphs, GraphMaker, graph_sizes
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.memory.arithmetic import estimate_graph_bytes
from dormouse_worker.model.memory.resident import Meter
from dormouse_worker.model.parallel.communicator import Communicator

logger = logging.getLogger(__name__)

LOGIT_BYTES = 4  # of the widest dtype that logits have


class DecodeRecorder:
    """Owns the graphs over one cache; they outlive its sleeps."""

    def __init__(self, settings: EngineSettings, layout: Layout, find_maker: Callable[[], GraphMaker | None]) -> None:
        """`find_maker` returns who records; None where nothing can."""
        self._settings = settings
        self._layout = layout
        self._find_maker = find_maker
        self.graphs: DecodeGraphs | None = None
        self.recording: Recording | None = None  # what recording them took

    def __repr__(self) -> str:
        return f"DecodeRecorder({self.recording})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the batch sizes to record; none between stages, whose exchanges go through the host.

        The sums of one stage's ranks are recorded with the rest.
        """
        is_one_stage = self._layout.pipeline == 1
        has_graphs = is_one_stage and self._settings.cuda_graphs and self._find_maker() is not None
        return graph_sizes(self._settings.max_num_seqs) if has_graphs else ()

    def estimate_bytes(self, model: LoadedModel) -> int:
        """Return what the graphs of this model will take of the device's memory."""
        if model.sides is not None:
            return 0
        row_bytes = model.vocab_size * LOGIT_BYTES
        return estimate_graph_bytes(self.sizes, num_layers=len(model.cache_spec.layers), row_bytes=row_bytes)

    def record(
        self, model: LoadedModel, cache: KVCache, backend: AttentionBackend, *, meter: Meter, communicator: Communicator
    ) -> bool:
        """Record decode steps over a new cache; return whether there are any: not every backend and model can.

        A model whose pass cannot be recorded computes step by step. All ranks of a group replay, or none.
        """
        maker, sizes = self._find_maker(), self.sizes
        if maker is None or not sizes or model.sides is not None or not is_graph_backend(backend):
            return False
        recorded = DecodeGraphs(TorchForward(model, cache, communicator), backend, sizes, model.device)
        self.recording = record(recorded, maker, len(cache.spec.groups), meter=meter, communicator=communicator)
        if self.recording is None:
            return False
        logger.info("%s", self.recording)
        self.graphs = recorded
        return True

    def forget(self) -> None:
        """The cache that they read goes."""
        self.graphs = self.recording = None
