"""A worker on processors that ends in the middle of a step with drafts, when a file beside its model says where.

`die` holds the phase, and whether the whole worker ends or its engine alone. It obeys once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dormouse_worker.model.slim_imports import import_slim

import_slim()  # before anything else imports transformers: for a worker's own class nobody else does it

from dormouse_worker.engine.batch import Batch, ModelOutput  # noqa: E402  # see above
from dormouse_worker.executor.worker.cpu_worker import CpuWorker  # noqa: E402
from tests.integration.draft_phases import SCORED, always_draft, may_end, obey, obey_behind  # noqa: E402

always_draft()


class FrailDraftWorker(CpuWorker):
    """A `CpuWorker` whose drafts may be its end."""

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `WorkerBase`."""
        asks, scores = may_end(batch)
        if asks:
            drafter: Any = self._allocated()._runner._drafter
            obey_behind(drafter._paths, "compute", self.settings.model_path)
        wait_for_output = super().submit(batch)
        if scores:
            obey(self.settings.model_path, SCORED)  # some may be taken, and nobody has heard of them
        return wait_for_output
