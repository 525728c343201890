"""What one rank remembers of its sequences, in buffers that live as long as the cache.

Each sequence has a row; a batch brings only what changed. `pack` turns a batch into the arrays of one forward pass
with a fixed number of numpy calls, however many sequences there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from dormouse_worker.engine.batch import Batch, NewSequence, ScheduledSequence
from dormouse_worker.ipc import Sampling
from dormouse_worker.model.attention.interface import AttentionMetadata, Ints
from dormouse_worker.model.sampling_row import takes_likeliest

_start, _end, _row = (attrgetter(name) for name in ("start", "end", "row"))


class RankSequence:
    """One sequence as its rank knows it. Implements `SamplingRow` without a copy of any token."""

    def __init__(self, new: NewSequence, row: int, tokens: Ints, num_groups: int) -> None:
        """`tokens` is the row's part of the buffer, with room for all that may come."""
        self.request_id = new.request_id
        self.sampling: Sampling = new.sampling
        self.takes_likeliest = takes_likeliest(new.sampling)
        self.asks_for_prompt = new.sampling.prompt_logprobs is not None
        self.row = row
        self.num_prompt_tokens = len(new.prompt_token_ids)
        self.num_tokens = new.num_tokens
        self.num_blocks = [0] * num_groups
        self._tokens = tokens
        tokens[: self.num_tokens] = new.prompt_token_ids + new.output_token_ids

    def __repr__(self) -> str:
        return f"RankSequence({self.request_id}, row {self.row}, {self.num_prompt_tokens} + {self.position} tokens)"

    @property
    def prompt_token_ids(self) -> Ints:
        """Return the prompt."""
        return self._tokens[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> Ints:
        """Return the output so far."""
        return self._tokens[self.num_prompt_tokens : self.num_tokens]

    @property
    def position(self) -> int:
        """Return how long the output is."""
        return self.num_tokens - self.num_prompt_tokens

    def append(self, token_id: int) -> None:
        """Note the token that was sampled."""
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1


@dataclass(frozen=True, slots=True)
class PackedInput:
    """One forward pass over N sequences and T tokens, on the host. Holds until the next `update`: some are views."""

    sequences: list[RankSequence]  # [N]
    token_ids: Ints  # [T]
    positions: Ints  # [T]
    query_starts: Ints  # [N + 1]
    groups: tuple[AttentionMetadata, ...]  # one for each layer group


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the T tokens of a pass lie in the buffers."""

    query_starts: Ints  # [N + 1]
    row_of: Ints  # [T]
    positions: Ints  # [T]


class InputBatch:
    """Owns rows [0, max_num_seqs): their tokens and block tables."""

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int, windows: tuple[int | None, ...]
    ) -> None:
        """Allocate and touch: whoever measures this process's memory shall see all of it now."""
        self._block_size = block_size
        self._windows = windows
        self._token_ids = np.full((max_num_seqs, max_model_len + 1), 0, dtype=np.int64)
        width = -(-max_model_len // block_size)
        self._tables = [np.full((max_num_seqs, width), 0, dtype=np.int64) for _ in windows]
        self._counting = np.arange(max_num_seqs + 1)
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._sequences: dict[str, RankSequence] = {}

    def __repr__(self) -> str:
        return f"InputBatch({len(self._sequences)} sequences, {len(self._free_rows)} free rows)"

    def sequence(self, request_id: str) -> RankSequence:
        """Return what is known of a sequence."""
        return self._sequences[request_id]

    def update(self, batch: Batch) -> None:
        """Take what the batch brings. After an exception only a fresh batch may follow."""
        for request_id in tuple(self._sequences) if batch.is_fresh else batch.released:
            self._remove(request_id)
        for new in batch.new:
            self._add(new)
        for scheduled in batch.sequences:
            if any(scheduled.new_block_ids):
                self._append_blocks(scheduled)

    def append(self, request_id: str, token_id: int) -> None:
        """Note the token that was sampled for a sequence; nothing happens if it was released meanwhile."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.append(token_id)

    def pack(self, batch: Batch) -> PackedInput:
        """Return the arrays of this batch's forward pass."""
        size, known = self._block_size, self._sequences
        sequences = [known[scheduled.request_id] for scheduled in batch.sequences]
        starts, ends = _ints(_start, batch.sequences), _ints(_end, batch.sequences)
        rows = _ints(_row, sequences)
        spans = self._locate(rows, starts, ends)
        row_of, positions = spans.row_of, spans.positions
        num_columns = -(-int(ends.max()) // size)
        columns = positions // size
        offsets = positions - columns * size
        groups = tuple(
            AttentionMetadata(
                query_starts=spans.query_starts,
                context_lens=ends,
                block_tables=_take_rows(table, rows, num_columns),
                slot_mapping=table[row_of, columns] * size + offsets,
                positions=positions,
                block_size=size,
                window=window,
            )
            for table, window in zip(self._tables, self._windows, strict=True)
        )
        return PackedInput(sequences, self._token_ids[row_of, positions], positions, spans.query_starts, groups)

    def _locate(self, rows: Ints, starts: Ints, ends: Ints) -> _Rows:
        lengths = ends - starts
        num_seqs, num_tokens = len(rows), int(lengths.sum())
        if num_tokens == num_seqs:  # all decode
            return _Rows(self._counting[: num_seqs + 1], rows, starts)
        query_starts = np.zeros(num_seqs + 1, dtype=np.int64)
        np.cumsum(lengths, out=query_starts[1:])
        positions = np.arange(num_tokens) + np.repeat(starts - query_starts[:-1], lengths)
        return _Rows(query_starts, np.repeat(rows, lengths), positions)

    def _add(self, new: NewSequence) -> None:
        row = self._free_rows.pop()
        self._sequences[new.request_id] = RankSequence(new, row, self._token_ids[row], len(self._windows))

    def _append_blocks(self, scheduled: ScheduledSequence) -> None:
        sequence = self._sequences[scheduled.request_id]
        for group, block_ids in enumerate(scheduled.new_block_ids):
            if block_ids:
                known = sequence.num_blocks[group]
                sequence.num_blocks[group] = known + len(block_ids)
                self._tables[group][sequence.row, known : known + len(block_ids)] = block_ids

    def _remove(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._free_rows.append(sequence.row)


def _ints(get: Callable[[Any], int], items: Sequence[object]) -> Ints:
    return np.fromiter(map(get, items), np.int64, len(items))


def _take_rows(table: Ints, rows: Ints, num_columns: int) -> Ints:
    """Return these rows' first columns: a view where the rows follow each other, as they do unless some have left."""
    first, count = int(rows[0]), len(rows)
    is_run = int(rows[-1]) - first == count - 1 and bool((rows[1:] > rows[:-1]).all())
    return table[first : first + count, :num_columns] if is_run else table[rows, :num_columns]
