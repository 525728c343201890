"""Builds one rank's worker late and calls it by method name.

Late: the environment of the rank must stand before torch is imported for the first time, and the worker's class, given
by its qualified name, imports torch.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from dormouse_worker.executor.worker_base import WorkerBase
from dormouse_worker.settings import EngineSettings

logger = logging.getLogger(__name__)

WORKER_CLASSES = {"cpu": "dormouse_worker.executor.cpu_worker.CpuWorker"}


class WorkerWrapper:
    """One rank: nothing but names until `init_worker`."""

    def __init__(self, settings: EngineSettings, rank: int, worker_class: str) -> None:
        self._settings = settings
        self._rank = rank
        self._worker_class = worker_class
        self._worker: WorkerBase | None = None

    def __repr__(self) -> str:
        state = "built" if self._worker else "not built"
        return f"WorkerWrapper(rank={self._rank}, {self._worker_class}, {state})"

    def update_environment(self, environ: MutableMapping[str, str], variables: Mapping[str, str]) -> None:
        """Set the rank's variables; only before `init_worker`, for later they would be ignored silently."""
        assert self._worker is None, "the environment must stand before the worker is built"
        environ.update(variables)

    def init_worker(self) -> None:
        """Import the worker's class and build it. Raises ImportError, AttributeError or TypeError with its name."""
        module_name, _, class_name = self._worker_class.rpartition(".")
        worker_class = getattr(importlib.import_module(module_name), class_name)
        if not (isinstance(worker_class, type) and issubclass(worker_class, WorkerBase)):
            raise TypeError(f"{self._worker_class} is no WorkerBase")
        self._worker = worker_class(self._settings, self._rank)

    def execute_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the worker's method of this name; whatever it raises is passed on, with rank and method in the log."""
        assert self._worker is not None, f"init_worker comes before {method}"
        try:
            return getattr(self._worker, method)(*args, **kwargs)
        except Exception:
            logger.warning("rank %d: %s raised", self._rank, method)
            raise
