"""The rows of a pass that are sampled from where some sequences have drafts: one for each draft more, in their order.

    tokens      … 17  4 |  9  5  2      17 4 known, 9 5 2 drafts, in the buffer behind them
    rows              4    9  5  2      logits of what follows each
    sampled           9    5  8  3      9 and 5 were right, so 8 is what comes next; 3 follows a 2 that does not
    kept              9    5  8

A draft is taken if it is what the row before it samples, with that position's own random number. So the tokens are
those that come without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dormouse_worker.engine.batch import Drafts
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.batch_rows import BatchRows, RankSequence
from dormouse_worker.model.sampling.native_sampler import Draws, repeat_draws
from dormouse_worker.model.sampling.sampling_row import Bits

_NO_DRAFT = -1  # behind a sequence's last row


class DraftedRow:
    """Implements `SamplingRow`: a sequence as it is once its first drafts are its output. They lie in its buffer."""

    __slots__ = ("_num_drafts", "_sequence", "request_id", "sampling")

    def __init__(self, sequence: RankSequence, num_drafts: int) -> None:
        self._sequence = sequence
        self._num_drafts = num_drafts
        self.request_id = sequence.request_id
        self.sampling = sequence.sampling

    def __repr__(self) -> str:
        return f"DraftedRow({self._sequence!r}, {self._num_drafts} drafts)"

    @property
    def prompt_token_ids(self) -> Ints:
        """See `SamplingRow`."""
        return self._sequence.prompt_token_ids

    @property
    def output_token_ids(self) -> Ints:
        """See `SamplingRow`."""
        return self._sequence.read_output(self.position)

    @property
    def allowed(self) -> Bits | None:
        """See `SamplingRow`. Where a draft before cannot be, nothing is: no such row is ever taken."""
        return self._sequence.allowed_behind(self._num_drafts)

    @property
    def position(self) -> int:
        """See `SamplingRow`."""
        return self._sequence.position + self._num_drafts


class ScoredRows:
    """The R rows of N sequences."""

    def __init__(self, owners: BatchRows, drafts: Sequence[Drafts]) -> None:
        """`drafts` are those of each sequence, perhaps none."""
        self._owners = owners
        self._drafts = drafts
        self._counts = np.fromiter((1 + len(each) for each in drafts), np.int64, len(owners))
        starts = self._counts.cumsum() - self._counts
        self._first = starts.repeat(self._counts)  # of each row the first of its sequence
        self._offsets = np.arange(len(self._first)) - self._first
        self._guesses = np.array([token for each in drafts for token in (*each, _NO_DRAFT)], dtype=np.int64)
        self._owner_of = np.arange(len(owners)).repeat(self._counts)

    def __repr__(self) -> str:
        return f"ScoredRows({len(self)} rows of {self._owners!r})"

    def __len__(self) -> int:
        return len(self._first)

    @cached_property
    def rows(self) -> list[DraftedRow]:
        """Return what the sampler is asked of each row."""
        owners = self._owners.sequences
        offsets = self._offsets.tolist()
        return [
            DraftedRow(owners[owner], offset) for owner, offset in zip(self._owner_of.tolist(), offsets, strict=True)
        ]

    @property
    def drafts_by_id(self) -> dict[str, Drafts]:
        """Return the drafts of each sequence."""
        return dict(zip(self._owners.request_ids, self._drafts, strict=True))

    @property
    def draws(self) -> Draws:
        """Return how the rows choose their tokens, for our kernels."""
        return repeat_draws(self._owners.draws, self._counts)

    def positions(self, positions_of_owners: Ints) -> Ints:
        """Return the output position of each row."""
        positions: Ints = positions_of_owners.repeat(self._counts) + self._offsets
        return positions

    def accept(self, tokens: Ints, are_fine: npt.NDArray[np.bool_]) -> Ints:
        """Return which rows count, for the tokens [R] that were sampled from them: of each sequence the first ones.

        A row that is not fine, of which no token may be taken, counts only as the first of its sequence: behind others
        it is left to the next pass, which says so then.
        """
        follows = tokens[:-1] == self._guesses[:-1]
        is_cut = np.zeros(len(tokens), dtype=np.int64)
        is_cut[1:] = ~(follows & are_fine[1:])
        num_cuts = is_cut.cumsum()  # beside that of its sequence's first row: whatever was cut there counts for all
        kept: Ints = np.flatnonzero(num_cuts == num_cuts[self._first])
        return kept

    def request_ids(self, kept: Ints) -> list[str]:
        """Return whose these rows are."""
        request_ids = self._owners.request_ids
        return [request_ids[owner] for owner in self._owner_of[kept].tolist()]
