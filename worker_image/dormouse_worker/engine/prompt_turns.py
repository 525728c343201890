"""When a prompt that is asked about may have the rows of sequences that decode. Knows no blocks and no tokens left.

A pass computes logits for at most as many rows as sequences may run, and each of these has one row. So in a full batch
a prompt whose log-probabilities are wanted, which needs a row for every token, would go on by one token a pass. It
gets a turn instead: every fourth pass leaves out all but the first in line and such prompts, which share the rows.
Nobody else loses more than a quarter of his passes, and the first in line none.
"""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.engine.request import Request

TURN_EVERY = 4  # passes


class PromptTurns:
    """Counts the passes in which such a prompt lacked rows."""

    def __init__(self, max_logit_rows: int) -> None:
        self._max_logit_rows = max_logit_rows
        self._num_scarce_passes = 0

    def __repr__(self) -> str:
        return f"PromptTurns({self._max_logit_rows} rows, {self._num_scarce_passes} scarce passes)"

    def take(self, running: Sequence[Request]) -> list[Request]:
        """Return who shares the next pass if it is such a turn, in line order; nobody = all do. Once for each pass."""
        num_spare = self._max_logit_rows - len(running)
        if num_spare >= self._max_logit_rows // TURN_EVERY:  # as many as turns would bring
            return []
        asking = [request for request in running if request.wants_prompt_logprobs and request.awaits_prompt_logprobs]
        self._num_scarce_passes += bool(asking)
        if not asking or self._num_scarce_passes % TURN_EVERY:
            return []
        return asking if asking[0] is running[0] else [running[0], *asking]
