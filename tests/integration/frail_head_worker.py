"""The same as `frail_draft_worker` with an EAGLE head, and without torch."""

from __future__ import annotations

from typing import Any

from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.executor.worker.bare_worker import BareWorker
from tests.integration.draft_phases import MANY, PROPOSING, SCORED, always_draft, obey

always_draft()


class FrailHeadWorker(BareWorker):
    """A `BareWorker` whose drafts may be its end."""

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        has_many = len(batch.sequences) >= MANY
        if has_many and any(sequence.num_wanted for sequence in batch.sequences):
            self._watch_drafter()
        output = super().execute_model(batch)
        if has_many and any(sequence.draft_token_ids for sequence in batch.sequences):
            obey(self.settings.model_path, SCORED)
        return output

    def _watch_drafter(self) -> None:
        """From now on, stop behind what the head says: it lies among the sequences' tokens then."""
        drafter: Any = self._allocated()._runner._drafter
        if "_say" in vars(drafter):
            return
        say = drafter._say

        def say_and_obey(*arguments: Any) -> Any:
            kept = say(*arguments)
            obey(self.settings.model_path, PROPOSING)
            return kept

        drafter._say = say_and_obey
