"""How far the draft model has come: in each block of the cache, and in each sequence.

The target's pass fills a block's part of the target; what the draft model has not computed yet is a hole in its own
part, which it fills before it proposes. Blocks tell whoever comes to share them how much is there:

    tokens    t0 t1 t2 t3 | t4 t5 t6 t7 | t8 t9          block size 4
    target    x  x  x  x    x  x  x  x    x
    draft     x  x  x  x    x  -                         filled 4, 1, 0: the next pass of the draft begins at t5

A hole, and even a wrong mark, costs a good guess and never a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dormouse_worker.engine.batch import Batch, Moves
from dormouse_worker.model.batch_rows import RankSequence
from dormouse_worker.model.input_batch import InputBatch


class Reach:
    """Owns how many first tokens of each block the draft model has computed, and how many of each sequence."""

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, sequences: InputBatch) -> None:
        self._filled = np.zeros(num_blocks, dtype=np.int64)
        self._on_host = np.zeros(num_host_blocks, dtype=np.int64)
        self._block_size = block_size
        self._sequences = sequences
        self._computed: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Reach({len(self._computed)} sequences)"

    def follow(self, batch: Batch) -> None:
        """Blocks move and begin anew as a batch says, which `sequences` have taken already."""
        if batch.is_fresh:
            self._computed.clear()
        for request_id in batch.released:
            self._computed.pop(request_id, None)
        self._move(batch.swap_out, batch.swap_in)
        for new in batch.new:
            self._computed.pop(new.request_id, None)
        for scheduled in batch.sequences:
            if scheduled.new_block_ids[0]:
                self._empty(self._sequences.sequence(scheduled.request_id), scheduled.start)

    def find(self, sequence: RankSequence, num_tokens: int) -> int:
        """Return how many of a sequence's first tokens are computed, at most so many."""
        known = self._computed.get(sequence.request_id)
        if known is None:
            size = self._block_size
            filled = self._filled[self._sequences.blocks_of(sequence, num_tokens)]
            holes = np.flatnonzero(filled < size)
            known = int(holes[0]) * size + int(filled[holes[0]]) if len(holes) else len(filled) * size
            self._computed[sequence.request_id] = known
        return min(known, num_tokens)

    def note(self, sequence: RankSequence, end: int) -> None:
        """The sequence's first tokens up to `end` are computed, and are its own."""
        size, start = self._block_size, self._computed.get(sequence.request_id, 0)
        self._computed[sequence.request_id] = end
        if end > start:
            first = start // size
            blocks = self._sequences.blocks_of(sequence, end)[first:]
            self._filled[blocks] = np.minimum(size, end - size * np.arange(first, first + len(blocks)))

    def forget(self, block_ids: Sequence[int]) -> None:
        """These blocks came from elsewhere, with the target's part alone: nothing of them is computed."""
        self._filled[list(block_ids)] = 0

    def doubt(self, request_ids: Sequence[str]) -> None:
        """A pass over these did not end well: look at their blocks again."""
        for request_id in request_ids:
            self._computed.pop(request_id, None)

    def _empty(self, sequence: RankSequence, start: int) -> None:
        """From the token at `start` on the sequence writes blocks that hold nothing of others."""
        size, first = self._block_size, start // self._block_size
        blocks = self._sequences.blocks_of(sequence, self._sequences.num_places(sequence))[first:]
        known = self._computed.get(sequence.request_id, start)
        most = np.maximum(0, max(start, known) - size * np.arange(first, first + len(blocks)))
        self._filled[blocks] = np.minimum(self._filled[blocks], most)

    def _move(self, out: Moves, back: Moves) -> None:
        for block, host_block in out:
            self._on_host[host_block] = self._filled[block]
        for host_block, block in back:
            self._filled[block] = self._on_host[host_block]
