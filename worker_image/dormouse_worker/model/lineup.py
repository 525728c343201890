"""A sequence as its rank knows it, and the sequences of a pass: nearly every pass has those of the pass before."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from dormouse_worker.engine.batch import NewSequence
from dormouse_worker.model.attention.interface import Ints
from dormouse_worker.model.sampling_row import takes_likeliest


class RankSequence:
    """Implements `SamplingRow` over the buffers of all sequences, without a copy of any token."""

    __slots__ = (
        "_counts",
        "_tokens",
        "asks_for_prompt",
        "num_blocks",
        "num_prompt_tokens",
        "request_id",
        "row",
        "sampling",
        "takes_likeliest",
    )

    def __init__(self, new: NewSequence, row: int, token_ids: Ints, counts: Ints, num_groups: int) -> None:
        """Write its tokens into the row's place: token_ids [rows, longest], counts [rows] of those that are known."""
        self.request_id = new.request_id
        self.row = row
        self.sampling = new.sampling
        self.takes_likeliest = takes_likeliest(new.sampling)
        self.asks_for_prompt = new.sampling.prompt_logprobs is not None
        self.num_prompt_tokens = len(new.prompt_token_ids)
        self.num_blocks = [0] * num_groups
        self._tokens, self._counts = token_ids[row], counts
        self._tokens[: new.num_tokens] = new.prompt_token_ids + new.output_token_ids
        counts[row] = new.num_tokens

    def __repr__(self) -> str:
        return f"RankSequence({self.request_id}, row {self.row}, {self.num_prompt_tokens} + {self.position} tokens)"

    @property
    def prompt_token_ids(self) -> Ints:
        """Return the prompt."""
        prompt: Ints = self._tokens[: self.num_prompt_tokens]
        return prompt

    @property
    def output_token_ids(self) -> Ints:
        """Return the output so far."""
        output: Ints = self._tokens[self.num_prompt_tokens : self._counts[self.row]]
        return output

    @property
    def position(self) -> int:
        """Return how long the output is."""
        return int(self._counts[self.row]) - self.num_prompt_tokens


_row, _takes_likeliest, _asks = (attrgetter(name) for name in ("row", "takes_likeliest", "asks_for_prompt"))


class Lineup:
    """Some sequences in their order, and what follows from them alone."""

    def __init__(self, sequences: Sequence[RankSequence]) -> None:
        self.sequences = sequences
        self.request_ids = [sequence.request_id for sequence in sequences]
        self.rows = np.fromiter(map(_row, sequences), np.int64, len(sequences))
        self.take_likeliest = all(map(_takes_likeliest, sequences))
        self.ask_for_prompts = any(map(_asks, sequences))
        self._run = _run_of(self.rows)

    def __repr__(self) -> str:
        return f"Lineup({', '.join(self.request_ids)})"

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, table: Ints, num_columns: int) -> Ints:
        """Return the first columns of the sequences' rows: a view where they follow each other."""
        return table[self.rows if self._run is None else self._run, :num_columns]


def _run_of(rows: Ints) -> slice | None:
    """Return the rows if each follows the one before, as they do until somebody leaves between them."""
    if not len(rows) or (np.diff(rows) != 1).any():
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1)
