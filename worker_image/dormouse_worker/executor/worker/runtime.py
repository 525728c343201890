"""Which worker computes a model here: the one place that knows both those with torch and the one without."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import POOLING
from dormouse_worker.executor.worker.wrapper import BARE_CLASS, BARE_POOLING_CLASS, worker_class_of
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.files.task_files import task_of
from dormouse_worker.model.without_torch import why_torch
from dormouse_worker.native.library import load_kernels

logger = logging.getLogger(__name__)


def choose_worker(settings: EngineSettings, environ: Mapping[str, str], files: ModelFiles) -> str:
    """Return the qualified name of the class for one rank alone. Raises InvalidSettings for a device that has none."""
    task = task_of(settings, files.config)
    with_torch = worker_class_of(settings, environ, task)
    reason = why_torch(settings, task, files, load_kernels())
    logger.info("%s", "an engine without torch" if reason is None else f"an engine with torch: {reason}")
    if reason is not None:
        return with_torch
    return BARE_POOLING_CLASS if task in POOLING else BARE_CLASS
