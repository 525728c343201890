"""From a pass's logits to what it says, and to what the sequences know from then on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec
import numpy as np

from dormouse_worker.engine.batch import ModelOutput, SampledToken
from dormouse_worker.engine.grammars import Grammars
from dormouse_worker.model.constraints import Stuck, add_forced, begin_masks
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.sampling.logit_rows import LogitRows
from dormouse_worker.model.tensors import Tensor

_request_id = attrgetter("request_id")

Answer = Callable[[LogitRows, Tensor, InputBatch], ModelOutput]  # what is said to logits


class Conclusion:
    """Asks for masks before a pass and for answers after it."""

    def __init__(self, sequences: InputBatch, answer: Answer, *, notes: bool) -> None:
        """`notes` says whether what was sampled is known here at once: in a group it comes with a later batch."""
        self._sequences = sequences
        self._answer = answer
        self._notes = notes
        self._grammars: Grammars | None = None
        self._expects_drafts = False

    def bind_by(self, grammars: Grammars, *, expects_drafts: bool) -> None:
        """From now on let sequences that have a grammar say only what it allows; only where this rank samples.

        Whoever takes drafts is told what can only come next, too, where a pass has to say it.
        """
        self._grammars, self._expects_drafts = grammars, expects_drafts

    def begin_masks(self, wanted: LogitRows) -> Callable[[], Stuck]:
        """See `constraints.begin_masks`."""
        return begin_masks(self._grammars, wanted)

    def conclude(self, wanted: LogitRows, logits: Tensor, wait_for_masks: Callable[[], Stuck]) -> ModelOutput:
        """Return what is said to the logits of the wanted rows, once their masks are there."""
        stuck = wait_for_masks()
        output = self._answer(wanted, logits, self._sequences)
        if stuck:
            output = msgspec.structs.replace(output, stuck=stuck | output.stuck)
        if wanted.batch_rows.bound and self._grammars is not None:
            output = add_forced(self._grammars, wanted.batch_rows, output, expects=self._expects_drafts)
        if self._notes:
            self._append(wanted, output.sampled)
        return output

    def _append(self, wanted: LogitRows, sampled: Sequence[SampledToken]) -> None:
        batch_rows, token_ids = wanted.batch_rows, [token.token_id for token in sampled]
        if wanted.scored is not None:
            counts = np.fromiter(Counter(map(_request_id, sampled)).values(), np.int64)
            self._sequences.append_runs(batch_rows, counts, token_ids)
        else:
            self._sequences.append_each(batch_rows, token_ids)
        for token in sampled if batch_rows.bound else ():
            self._sequences.append(token.request_id, *token.forced)
