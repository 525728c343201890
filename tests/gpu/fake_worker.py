"""A GPU's worker without the GPU: the same steps, with work done again in place of graphs, on the fake device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dormouse_worker.executor.testing import FakeDeviceWorker
from dormouse_worker.model.attention.interface import AttentionMetadata, AttentionPlan, GraphSupport
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.model.loaded import LoadedModel


class FakeGpuWorker(FakeDeviceWorker):
    """A `FakeDeviceWorker` that records its decode steps, as a `GpuWorker` does."""

    def make_graph_maker(self) -> RerunMaker:
        """See `RankWorker`."""
        return RerunMaker()

    def _select_backend(self, model: LoadedModel) -> ReplanningBackend:
        del model  # the reference computes every one
        return ReplanningBackend()


class Rerun:
    """A `Graph` that does the recorded work again, over the same tensors."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class RerunMaker:
    """A `GraphMaker` where there are no graphs."""

    def record(self, work: Callable[[], None]) -> Rerun:
        """See `GraphMaker`."""
        work()
        return Rerun(work)


class ReplanningBackend(SdpaBackend):
    """The reference as a `GraphBackend`: a graph's plan is planned anew at each refresh."""

    graph_support = GraphSupport.DECODE

    def graph_plan(self, group: int, num_seqs: int, device: torch.device) -> ReplanningPlan:
        """See `GraphBackend`."""
        del group, num_seqs
        return ReplanningPlan(self, device)


class ReplanningPlan:
    """Implements `GraphPlan`; rows beyond the batch are dummies."""

    def __init__(self, backend: SdpaBackend, device: torch.device) -> None:
        self._backend, self._device = backend, device
        self._plan: AttentionPlan | None = None
        self._num_rows = 0

    def refresh(self, metadata: AttentionMetadata) -> None:
        """See `GraphPlan`."""
        self._plan, self._num_rows = self._backend.plan(metadata, self._device), len(metadata.positions)

    def write(self, layer: LayerCache, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `AttentionPlan`."""
        if self._plan is not None:
            self._plan.write(layer, key[: self._num_rows], value[: self._num_rows])

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """See `AttentionPlan`."""
        output = query.new_zeros(query.shape[0], query.shape[1], layer.sizes[1])
        if self._plan is not None:
            output[: self._num_rows] = self._plan.attend(call, query[: self._num_rows], layer)
        return output
