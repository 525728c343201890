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
from tests.integration.draft_phases import MANY, PROPOSING, SCORED, always_draft, obey  # noqa: E402

always_draft()


class FrailDraftWorker(CpuWorker):
    """A `CpuWorker` whose drafts may be its end."""

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `WorkerBase`."""
        has_many = len(batch.sequences) >= MANY
        if has_many and any(sequence.num_wanted for sequence in batch.sequences):
            self._watch_drafter()
        wait_for_output = super().submit(batch)
        if has_many and any(sequence.draft_token_ids for sequence in batch.sequences):
            obey(self.settings.model_path, SCORED)  # some may be taken, and nobody has heard of them
        return wait_for_output

    def _watch_drafter(self) -> None:
        """From now on, stop behind a pass of the draft model: what it says lies among the sequences' tokens then."""
        paths: Any = self._allocated()._runner._drafter._paths
        if "compute" in vars(paths):
            return
        compute = paths.compute

        def compute_and_obey(*arguments: Any) -> Any:
            logits = compute(*arguments)
            obey(self.settings.model_path, PROPOSING)
            return logits

        paths.compute = compute_and_obey
