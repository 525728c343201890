"""Which drafts go into one pass, and how many are wanted for the next: with what nobody else needs. Owns nothing."""

from __future__ import annotations

from typing import NamedTuple

from dormouse_worker.engine.batch import Drafts
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.drafts.pace import TRIAL_PART, Trial
from dormouse_worker.engine.forward_pass import Pass
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.speculation.speculation import Speculation


class Drafting(NamedTuple):
    """What one sequence does about drafts in a pass."""

    drafts: Drafts = ()  # that are scored
    num_wanted: int = 0  # of the model beside, for the next pass


NO_DRAFTS = Drafting()


class DraftTurn:
    """Gives the running sequences of one pass their drafts, and blocks for them."""

    def __init__(
        self, speculation: Speculation, tables: BlockTables, current: Pass, *, num_chosen: int, num_running: int
    ) -> None:
        """`num_chosen` of the running sequences take part."""
        self._speculation = speculation
        self._tables = tables
        self._num_chosen, self._num_running = num_chosen, num_running
        spare_rows = max(0, min(current.spare_draft_rows, current.spare_logit_rows)) if num_chosen else 0
        self._costs = speculation.costs.turn(num_chosen) if spare_rows else None
        if isinstance(self._costs, Trial):
            current.spare_draft_rows = spare_rows = min(spare_rows, -(-num_chosen // TRIAL_PART))
        self._share = spare_rows // num_chosen if num_chosen else 0

    def __repr__(self) -> str:
        return f"DraftTurn({self._num_chosen} of {self._num_running} sequences, {self._share} wanted of each at most)"

    def draft(self, request: Request, current: Pass) -> Drafting:
        """Return what a sequence that samples in this pass does about drafts."""
        if self._costs is None:
            return NO_DRAFTS
        num_pending = request.num_pending_tokens
        spare_tokens = current.tokens_left - num_pending - self._num_chosen
        if spare_tokens <= 0 or request.num_promised_tokens or self._tables.pool.num_available <= self._num_running:
            return NO_DRAFTS
        decodes = num_pending == 1 and not request.awaits_images
        if not decodes and current.end_of(request) != request.num_tokens:
            return NO_DRAFTS
        most = min(current.spare_draft_rows, current.spare_logit_rows, spare_tokens)
        drafts = self._speculation.propose(request, self._costs, most)
        num_wanted = self._speculation.want(request, self._num_chosen, self._share, len(drafts))
        if num_wanted and self._has_room(request, len(drafts) + num_wanted):
            return Drafting(drafts, num_wanted)
        return Drafting(drafts) if drafts and self._has_room(request, len(drafts)) else NO_DRAFTS

    def _has_room(self, request: Request, count: int) -> bool:
        """Return whether its blocks hold so many tokens more than there are; they do from then on."""
        end = request.num_tokens + count
        return self._tables.grow(request.request_id, end, end)
