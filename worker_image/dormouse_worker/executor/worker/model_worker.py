"""What every worker with a model of ours owns: the loaded model, and the adapters beside it."""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.worker import setup
from dormouse_worker.executor.worker.torch_worker import TorchWorker
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.loader import load


class ModelWorker(TorchWorker):
    """Implements of `WorkerBase` what has to do with the model alone; a subclass says over which cache it runs."""

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank, host)
        self.layout = setup.make_layout(settings, rank)
        self._model: LoadedModel | None = None

    @property
    @abstractmethod
    def computes_batches(self) -> bool:
        """Return False for a subclass that computes batches in a way of its own.

        It binds no output by a grammar, has no adapters, keeps no blocks, and is asked for one batch after the other.
        """

    @property
    def has_model(self) -> bool:
        """Return whether a model is loaded."""
        return self._model is not None

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._model = load(self.settings, self.device, self.layout)

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `WorkerBase`."""
        return self._loaded().cache_spec.windows

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `Executor.add_lora`."""
        adapters = self._loaded().adapters
        if adapters is None or not self.computes_batches:
            return super().add_lora(path, digest, seconds)
        return adapters.advance(Path(path), digest, seconds)

    def remove_lora(self, digest: str) -> None:
        """See `Executor.remove_lora`."""
        if (adapters := self._loaded().adapters) is not None:
            adapters.remove(digest)

    def list_loras(self) -> AdapterList:
        """See `Executor.list_loras`."""
        adapters = self._loaded().adapters
        return AdapterList([]) if adapters is None else AdapterList([*adapters.infos.values()], adapters.lost)

    def _loaded(self) -> LoadedModel:
        assert self._model is not None, "load_model comes first"
        return self._model

    def _close_model(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
