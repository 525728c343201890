"""Builds one rank's worker once the rank's environment is set, and calls it by method name.

Nearly every class imports torch, which reads the environment once: until then the class is a qualified name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from dormouse_worker.common.errors import InvalidArgument, InvalidSettings, WorkerError
from dormouse_worker.common.host import lasting_objects
from dormouse_worker.common.settings import HEADS, EngineSettings
from dormouse_worker.common.stand_in import has_stand_in
from dormouse_worker.common.tasks import GENERATE, POOLING, TRANSCRIBE
from dormouse_worker.executor.worker.base import WorkerBase
from dormouse_worker.executor.worker.classes import resolve_worker_class
from dormouse_worker.model.slim_imports import import_slim

logger = logging.getLogger(__name__)

WORKER_CLASSES = {
    "cpu": "dormouse_worker.executor.worker.cpu_worker.CpuWorker",
    "cuda": "dormouse_worker.executor.worker.gpu_worker.GpuWorker",
}
BARE_CLASS = "dormouse_worker.executor.worker.bare_worker.BareWorker"
BARE_POOLING_CLASS = "dormouse_worker.executor.worker.bare_pooling_worker.BarePoolingWorker"
WITHOUT_TORCH = frozenset({BARE_CLASS, BARE_POOLING_CLASS})
STAND_IN_CLASS = "dormouse_worker.executor.worker.stand_in_worker.StandInWorker"
_POOLING = "dormouse_worker.executor.worker.pooling_devices."
_SPEECH = "dormouse_worker.executor.worker.speech_worker."
SPEECH_CLASSES = {"cpu": f"{_SPEECH}CpuSpeechWorker", "cuda": f"{_SPEECH}GpuSpeechWorker"}
POOLING_CLASSES = {"cpu": f"{_POOLING}CpuPoolingWorker", "cuda": f"{_POOLING}GpuPoolingWorker"}


def worker_class_of(settings: EngineSettings, environ: Mapping[str, str], task: str = GENERATE) -> str:
    """Return the qualified name of the worker's class. Raises InvalidSettings for a device that has none."""
    if task == TRANSCRIBE:
        if has_stand_in(settings, environ):
            raise InvalidSettings("the device is a stand-in for a GPU, which has none for the task transcribe")
        return SPEECH_CLASSES[settings.device]
    if task in POOLING:
        return (
            f"{_POOLING}StandInPoolingWorker" if has_stand_in(settings, environ) else POOLING_CLASSES[settings.device]
        )
    if settings.worker_cls != "auto":
        return settings.worker_cls
    if has_stand_in(settings, environ):
        return STAND_IN_CLASS
    worker_class = WORKER_CLASSES.get(settings.device)
    if worker_class is None:
        raise InvalidSettings(f"device is {settings.device!r}; this version has {', '.join(WORKER_CLASSES)}")
    return worker_class


def import_worker(settings: EngineSettings, worker_class: str, *, is_quantized: bool) -> type[WorkerBase]:
    """Import the class of this name and what it needs. Raises InvalidSettings. The environment must be set before.

    A quantized model needs all of transformers. For a user's own class nothing is imported beforehand; beside a head it
    has to be one that computes heads.
    """
    with lasting_objects():
        if settings.worker_cls == "auto" and not is_quantized and worker_class not in WITHOUT_TORCH:
            import_slim()
        found = resolve_worker_class(worker_class, settings.worker_extension_cls)
    if (method := settings.speculation_method) in HEADS - found.heads:
        raise InvalidSettings(
            f"speculation_method is {method}, and the worker's class is {worker_class!r}, which computes no such heads "
            f"(device is {settings.device!r}); derive it from {WORKER_CLASSES['cpu']}, or use draft, or suffix"
        )
    return found


class WorkerWrapper:
    """One rank. It has no worker before `init_worker`."""

    def __init__(self, settings: EngineSettings, rank: int, worker_class: str) -> None:
        self._settings = settings
        self._rank = rank
        self._worker_class = worker_class
        self._worker: WorkerBase | None = None

    def __repr__(self) -> str:
        state = "built" if self._worker else "not built"
        return f"WorkerWrapper(rank={self._rank}, {self._worker_class}, {state})"

    def update_environment(self, environ: MutableMapping[str, str], variables: Mapping[str, str]) -> None:
        """Set the rank's variables; only before `init_worker`, as torch ignores later ones silently."""
        assert self._worker is None, "the environment is set before the worker is built"
        environ.update(variables)

    def init_worker(self, *, is_quantized: bool = False) -> None:
        """Import the worker's class and build it. Raises InvalidSettings with its name, or its own WorkerError."""
        worker_class = import_worker(self._settings, self._worker_class, is_quantized=is_quantized)
        try:
            self._worker = worker_class(self._settings, self._rank)
        except WorkerError:
            raise
        except Exception as error:
            logger.exception("rank %d: %s cannot be built", self._rank, self._worker_class)
            raise InvalidSettings(
                f"worker_cls is {self._worker_class!r}, which cannot be built with (settings, rank): "
                f"{type(error).__name__}: {error}"
            ) from error

    def execute_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the worker's method of this name; whatever it raises is passed on, with rank and method in the log."""
        assert self._worker is not None, f"init_worker comes before {method}"
        bound = getattr(self._worker, method, None)
        if not callable(bound):
            raise InvalidArgument(f"method is {method!r}, which {type(self._worker).__qualname__} does not have")
        try:
            return bound(*args, **kwargs)
        except Exception:
            logger.warning("rank %d: %s raised", self._rank, method)
            raise
