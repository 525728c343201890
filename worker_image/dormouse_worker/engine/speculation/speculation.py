"""Who proposes what to whom: the drafts of all sequences, and what became of them.

A request keeps its `SequenceDrafts`; they only ever follow the output, and are made anew by whoever begins anew with
it. A draft changes nothing but the time: a row is sampled with its own random number, and a proposed token is taken
only where it is what the row says (`model/scored_rows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from dormouse_worker.common.ipc import DraftCounts
from dormouse_worker.engine.batch import Batch, Drafts, Proposals
from dormouse_worker.engine.drafts.earlier import EarlierAnswers
from dormouse_worker.engine.drafts.model import ModelPace
from dormouse_worker.engine.drafts.pace import Costs, RowCosts
from dormouse_worker.engine.drafts.sequence import TAIL_LENGTH, SequenceDrafts
from dormouse_worker.engine.forward_pass import Limits, Progress
from dormouse_worker.engine.request import Request


class Speculation:
    """Proposes to a scheduler. Owns what rows cost, and the counters."""

    def __init__(self, limits: Limits) -> None:
        """Propose within these limits."""
        self._num_draft_tokens = 0
        self._max_tokens, self._max_model_len = limits.max_draft_tokens, limits.max_model_len
        self._num_with_taken = [0] * (1 + self._max_tokens)  # drafts of which so many tokens were right
        self.costs = RowCosts(self._max_tokens)
        self._earlier = EarlierAnswers() if limits.recalls_answers else None
        self.model = ModelPace(self.costs) if limits.asks_model else None
        self._reads_along = limits.model_reads_along

    def __repr__(self) -> str:
        return f"Speculation({self._max_tokens} tokens, {self.costs!r}, {self._earlier!r}, {self.model!r})"

    def propose(self, request: Request, costs: Costs, most: int) -> Drafts:
        """Return what may come next in a sequence whose tokens are all known, where rows cost that."""
        most = min(most, self._max_tokens, request.num_left(self._max_model_len) - 1)
        if most <= 0 or request.takes_prompt_rows:
            return ()
        if request.drafts is None:
            request.drafts = self._begin(request)
        drafts = request.drafts
        drafts.append(
            request.output_token_ids[drafts.num_tokens - request.num_prompt_tokens :],
            expected=request.expected_token_ids,
            told=request.proposed_token_ids,
        )
        return drafts.propose(costs, most)

    def want(self, request: Request, num_seqs: int, most: int, num_drafts: int) -> int:
        """Return how many drafts a sequence wants of the model beside, for behind a pass in which it has so many.

        The first token waits for nobody: the model reads a prompt behind the second.
        """
        drafts = request.drafts
        if self.model is None or drafts is None or drafts.model is None or not request.output_token_ids:
            return 0
        most = min(most, self._max_tokens, request.num_left(self._max_model_len) - num_drafts - 2)
        if most <= 0 or drafts.has_better:
            return 0
        num_unread = 0 if self._reads_along else request.num_tokens - drafts.num_read
        wanted = self.model.choose(drafts.model.acceptance.chance, num_seqs, num_unread, most)
        if wanted:
            drafts.num_read = request.num_tokens
        return wanted

    def hear(self, batch: Batch, proposals: Proposals | None, by_id: Mapping[str, Request]) -> None:
        """A pass has come, with what the model beside thinks comes behind it."""
        if self.model is None:
            return
        self.model.observe(batch, proposals)
        told = {} if proposals is None else proposals.token_ids
        for sequence in batch.sequences:
            if (request := by_id.get(sequence.request_id)) is not None:
                request.proposed_token_ids = told.get(sequence.request_id, ())

    def note(self, progress: Progress, num_right: int) -> None:
        """A pass has come, in which so many of the request's drafts were right; those behind its end are not taken."""
        if progress.request.num_draft_tokens:
            self._settle(progress.request, num_taken=min(num_right, len(progress.token_ids)))
        if progress.finish_reason is not None and self._earlier is not None:
            self._remember(self._earlier, progress.request)

    def _settle(self, request: Request, num_taken: int) -> None:
        assert request.drafts is not None, "something was proposed"
        num_proposed = request.num_draft_tokens
        request.num_scored_draft_tokens += num_proposed
        request.num_accepted_draft_tokens += num_taken
        self._num_draft_tokens += num_proposed
        self._num_with_taken[num_taken] += 1
        source = request.drafts.settle(num_proposed, num_taken)
        if self.model is not None and source is request.drafts.model:
            self.model.note(num_proposed, num_taken)
        if source.is_prediction:
            request.num_accepted_prediction_tokens += num_taken
            request.num_rejected_prediction_tokens += num_proposed - num_taken

    def forget(self) -> None:
        """Nobody shall be told any more what earlier answers said."""
        if self._earlier is not None:
            self._earlier.clear()

    def take_counts(self) -> DraftCounts | None:
        """Return what happened since this was asked last; None = nothing."""
        num_failures = 0 if self.model is None else self.model.take_failures()
        if not any(self._num_with_taken) and not num_failures:
            return None
        num_drafts, *per_position = [*accumulate(reversed(self._num_with_taken))][::-1]
        counts = DraftCounts(num_drafts, self._num_draft_tokens, per_position, num_failures)
        self._num_draft_tokens = 0
        self._num_with_taken = [0] * (1 + self._max_tokens)
        return counts

    def observe(self, batch: Batch, seconds: float) -> None:
        """A pass has come, alone on its way, after so long: tells what rows cost if all of it was decoding."""
        if all(sequence.num_known - sequence.start == 1 for sequence in batch.sequences):
            self.costs.observe(len(batch.sequences), batch.num_tokens, seconds)

    @staticmethod
    def _remember(earlier: EarlierAnswers, request: Request) -> None:
        """A request is complete: those that come may say the same."""
        first = max(0, request.num_prompt_tokens - TAIL_LENGTH)
        answer = request.token_ids(first, request.num_known_tokens)
        earlier.of((request.cache_salt, request.adapter)).add(answer)

    def _begin(self, request: Request) -> SequenceDrafts:
        longest = min(self._max_model_len, request.num_prompt_tokens + request.sampling.max_tokens)
        model = None if self.model is None else self.model.begin()
        drafts = SequenceDrafts(request.token_ids(0, request.num_known_tokens), longest, model)
        if request.prediction_token_ids:
            drafts.predict(request.prediction_token_ids, is_new=not request.output_token_ids)
        if self._earlier is not None:
            drafts.recall(self._earlier.of((request.cache_salt, request.adapter)))
        return drafts
