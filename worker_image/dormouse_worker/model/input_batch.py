"""What one rank remembers of its sequences, in buffers that live as long as the cache.

Each sequence has a row; a batch brings only what changed. `pack` turns a batch into the arrays of one forward pass
with a fixed number of numpy calls, however many sequences there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dormouse_worker.engine.batch import Batch, NewSequence, ScheduledSequence
from dormouse_worker.ipc import Sampling
from dormouse_worker.model.attention.interface import AttentionMetadata, Ints


@dataclass(slots=True)
class RankSequence:
    """One sequence as its rank knows it."""

    row: int
    sampling: Sampling
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    num_blocks: list[int] = field(default_factory=list)  # by layer group

    @property
    def num_tokens(self) -> int:
        """Return how many tokens are known."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)


@dataclass(frozen=True, slots=True)
class PackedInput:
    """One forward pass over N sequences and T tokens, on the host."""

    token_ids: Ints  # [T]
    positions: Ints  # [T]
    query_starts: Ints  # [N + 1]
    groups: tuple[AttentionMetadata, ...]  # one for each layer group


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
        if sequence is None:
            return
        self._token_ids[sequence.row, sequence.num_tokens] = token_id
        sequence.output_token_ids.append(token_id)

    def pack(self, batch: Batch) -> PackedInput:
        """Return the arrays of this batch's forward pass."""
        size = self._block_size
        rows = np.array([self._sequences[scheduled.request_id].row for scheduled in batch.sequences], dtype=np.int64)
        starts = np.array([scheduled.start for scheduled in batch.sequences], dtype=np.int64)
        ends = np.array([scheduled.end for scheduled in batch.sequences], dtype=np.int64)
        query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(ends - starts, out=query_starts[1:])
        row_of = np.repeat(rows, ends - starts)
        positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], ends - starts)
        num_columns = -(-int(ends.max()) // size)
        groups = tuple(
            AttentionMetadata(
                query_starts=query_starts,
                context_lens=ends,
                block_tables=table[rows, :num_columns],
                slot_mapping=table[row_of, positions // size] * size + positions % size,
                positions=positions,
                block_size=size,
                window=window,
            )
            for table, window in zip(self._tables, self._windows, strict=True)
        )
        return PackedInput(self._token_ids[row_of, positions], positions, query_starts, groups)

    def _add(self, new: NewSequence) -> None:
        row = self._free_rows.pop()
        self._token_ids[row, : new.num_tokens] = new.prompt_token_ids + new.output_token_ids
        outputs = list(new.output_token_ids)
        self._sequences[new.request_id] = RankSequence(
            row, new.sampling, new.prompt_token_ids, outputs, [0] * len(self._windows)
        )

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
