"""When the model beside is asked for drafts, and for how many: only where they are worth its passes and their rows.

A token of it costs, for each sequence, what one of its passes takes beside one of the target's. Who has not asked for a
while has to let it read what has come since, too; and who asks alone pays the whole pass, for which all others wait. So
where it does not pay it is tried again by a budget, some hundredths of what it might cost, and not by the clock.
"""

from __future__ import annotations

from dormouse_worker.engine.batch import Batch, Proposals
from dormouse_worker.engine.drafts.pace import TRIAL_SHARE, Acceptance, RowCosts, step

_PRIOR_CHANCE = 0.6
_PRIOR_PRICE = 0.15  # of a pass of it in passes of the target, before the first was measured
_CHEAPEST, _DEAREST = 0.001, 4.0
_FIRST_STEP, _STEP = 3.0, 1.1  # of an estimate: see `pace`
MAX_PAUSE_PASSES = 4096


class ModelPace:
    """Owns what the model's passes cost, how often it is right, and how it fares."""

    def __init__(self, costs: RowCosts) -> None:
        """`costs` are the rows' that score what it proposes."""
        self._costs = costs
        self._prices: dict[int, float] = {}  # by the magnitude of N
        self._usual = Acceptance(_PRIOR_CHANCE)
        self._budget = 0.0  # for trials, in tokens
        self._num_failures_in_a_row = self._pause_passes = 0
        self._num_failures = 0  # since they were taken

    def __repr__(self) -> str:
        return f"ModelPace({self._usual!r}, {self._prices}, {self._num_failures_in_a_row} failures in a row)"

    def begin(self) -> Acceptance:
        """Return what a sequence may expect of it at first: what others had."""
        return Acceptance(self._usual.chance)

    def note(self, num_proposed: int, num_taken: int) -> None:
        """So many of what it proposed to some sequence were taken."""
        self._usual.note(num_proposed, num_taken)

    def choose(self, chance: float, num_seqs: int, num_unread: int, most: int) -> int:
        """Return how many tokens a sequence wants of it, `most` at most, of which it has not read so many."""
        if self._pause_passes:
            return 0
        price = self._price(num_seqs)
        costs = self._costs.of(num_seqs).dearer(price)
        return costs.best_length(chance, most) or self._try(costs.first + price * (num_seqs - 1 + num_unread))

    def observe(self, batch: Batch, proposals: Proposals | None) -> None:
        """A pass has come, and with it what was wanted, if something was."""
        if proposals is not None and proposals.has_failed:
            self._num_failures += 1
            self._num_failures_in_a_row += 1
            self._pause_passes = min(MAX_PAUSE_PASSES, 1 << self._num_failures_in_a_row)
        elif proposals is None or not any(sequence.num_wanted for sequence in batch.sequences):  # it only read along
            self._pause_passes = max(0, self._pause_passes - 1)
        else:
            self._num_failures_in_a_row = 0
            self._learn(batch, proposals.seconds_per_token)

    def take_failures(self) -> int:
        """Return how often it failed, or was not there, since this was asked last."""
        count, self._num_failures = self._num_failures, 0
        return count

    def _learn(self, batch: Batch, seconds: float) -> None:
        num_seqs = len(batch.sequences)
        num_asking = sum(sequence.num_wanted > 0 for sequence in batch.sequences)
        plain_s = self._costs.plain_s(num_seqs)
        if plain_s <= 0 or seconds <= 0 or 2 * num_asking < num_seqs:  # a pass for few is not what one for all costs
            return
        magnitude, seen = num_seqs.bit_length(), seconds / plain_s * num_seqs / num_asking
        known = self._prices.get(magnitude)
        price = step(_PRIOR_PRICE, seen, _FIRST_STEP) if known is None else step(known, seen, _STEP)
        self._prices[magnitude] = min(_DEAREST, max(_CHEAPEST, price))

    def _price(self, num_seqs: int) -> float:
        return self._prices.get(num_seqs.bit_length(), _PRIOR_PRICE)

    def _try(self, cost: float) -> int:
        self._budget += TRIAL_SHARE
        if self._budget < cost:
            return 0
        self._budget -= cost
        return 1
