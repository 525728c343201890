"""The worker class that `crawling` names. Only engine processes import it: it brings torch."""

from __future__ import annotations

import time

from dormouse_worker.model.slim_imports import import_slim

import_slim()  # before anything else imports transformers: for a worker's own class nobody else does it

from dormouse_worker.engine.batch import Batch, ModelOutput  # noqa: E402  # see above
from dormouse_worker.executor.worker.cpu_worker import CpuWorker  # noqa: E402
from tests.integration.crawling import CRAWL, PASS_S  # noqa: E402


class CrawlingWorker(CpuWorker):
    """A worker for processors whose passes take their time while a file beside its model says so."""

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        if (self.settings.model_path / CRAWL).exists():
            time.sleep(PASS_S)
        return super().execute_model(batch)
