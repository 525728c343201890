"""The same as `frail_draft_worker` with an EAGLE head, and without torch."""

from __future__ import annotations

from typing import Any

from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.executor.worker.bare_worker import BareWorker
from tests.integration.draft_phases import SCORED, always_draft, may_end, obey, obey_behind

always_draft()


class FrailHeadWorker(BareWorker):
    """A `BareWorker` whose drafts may be its end."""

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        asks, scores = may_end(batch)
        if asks:
            drafter: Any = self._allocated()._runner._drafter
            obey_behind(drafter, "_say", self.settings.model_path)
        output = super().execute_model(batch)
        if scores:
            obey(self.settings.model_path, SCORED)
        return output
