"""What one rank remembers of its sequences, in buffers that live as long as the cache.

Each sequence has a row; a batch brings only what changed. `pack` turns a batch into the arrays of one forward pass
with a fixed number of numpy calls, however many sequences there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dormouse_worker.common.sides import source_room
from dormouse_worker.engine.batch import Batch, NewSequence, ScheduledSequence
from dormouse_worker.model.adapters.virtual_rows import VirtualRows, find_virtual_rows
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionMetadata
from dormouse_worker.model.batch_rows import BatchRows, RankSequence
from dormouse_worker.model.vision.placed import Placed, place
from dormouse_worker.model.vision.rope import prompt_positions, span_positions

PROMISED = -1  # a token that was sampled on the device and has not come yet


@dataclass(frozen=True, slots=True)
class PackedInput:
    """One forward pass over N sequences and T tokens, on the host. Holds until the next `update`: some are views."""

    batch_rows: BatchRows  # N sequences
    token_ids: Ints  # [T]; the last one of a sequence may be PROMISED
    positions: Ints  # [T]
    query_starts: Ints  # [N + 1]
    groups: tuple[AttentionMetadata, ...]  # one for each layer group
    lora_slots: Ints | None = None  # [T] where each row's adapter lies, -1 = it has none; None = no row has one
    images: tuple[Placed, ...] = ()  # rows that are no tokens'
    virtual: tuple[VirtualRows, ...] = ()  # rows that are a soft prompt's
    rope: Ints | None = None  # [3, T] in time, height and width; None = positions are all the same in these


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the T tokens of a pass lie in the buffers."""

    query_starts: Ints  # [N + 1]
    row_of: Ints  # [T]
    positions: Ints  # [T]


class InputBatch:
    """Owns rows [0, max_num_seqs): their tokens and block tables."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        windows: tuple[int | None, ...],
        image_merge: int = 0,
        images_are_whole: bool = False,
    ) -> None:
        """Allocate and touch: whoever measures this process's memory shall see all of it now.

        `image_merge` patches make one row of an image where positions are in time, height and width; 0 = they are not.
        `images_are_whole`: an image's tokens see each other.
        """
        self._image_merge = image_merge
        self._images_are_whole = images_are_whole
        self._block_size = block_size
        self._windows = windows
        self.num_rows = max_num_seqs
        self._token_ids = np.full((max_num_seqs, max_model_len + 1), 0, dtype=np.int64)
        self._num_tokens = np.full(max_num_seqs, 0, dtype=np.int64)
        width = -(-max_model_len // block_size)
        self._tables = [np.full((max_num_seqs, width), 0, dtype=np.int64) for _ in windows]
        self._counting = np.arange(max_num_seqs + 1)
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._sequences: dict[str, RankSequence] = {}
        self._lineups = BatchRows(()), BatchRows(())  # of the last passes: sequences may take part in every second one

    def __repr__(self) -> str:
        return f"InputBatch({len(self._sequences)} sequences, {len(self._free_rows)} free rows)"

    def sequence(self, request_id: str) -> RankSequence:
        """Return what is known of a sequence."""
        return self._sequences[request_id]

    def update(self, batch: Batch) -> None:
        """Take what the batch brings. After an exception only a fresh batch may follow."""
        if batch.is_fresh or batch.released or batch.new:  # an id may come again, in another row
            self._lineups = BatchRows(()), BatchRows(())
        for request_id in tuple(self._sequences) if batch.is_fresh else batch.released:
            self._remove(request_id)
        for new in batch.new:
            self._add(new)
        for scheduled in batch.sequences:
            if any(scheduled.new_block_ids):
                self._append_blocks(scheduled)
        self._write_drafts([scheduled for scheduled in batch.sequences if scheduled.draft_token_ids])

    def append(self, request_id: str, *token_ids: int) -> None:
        """Note what was sampled for a sequence, or forced; nothing happens if it was released meanwhile."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            row = sequence.row
            end = self._num_tokens[row] + len(token_ids)
            self._token_ids[row, self._num_tokens[row] : end] = token_ids
            self._num_tokens[row] = end

    def append_runs(self, batch_rows: BatchRows, counts: Ints, token_ids: list[int]) -> None:
        """Note so many tokens for each of these sequences, [N] counts."""
        rows, known = batch_rows.rows, self._num_tokens[batch_rows.rows]
        self._token_ids[rows.repeat(counts), _places(known, counts)] = token_ids
        self._num_tokens[rows] = known + counts

    def append_each(self, batch_rows: BatchRows, token_ids: list[int] | int) -> None:
        """Note a token for each of these sequences."""
        self._token_ids[batch_rows.rows, self._num_tokens[batch_rows.index]] = token_ids
        self._num_tokens[batch_rows.index] += 1

    def promise_each(self, batch_rows: BatchRows) -> Ints:
        """Keep a place for a token of each of these sequences; return the places in their rows, for `note`."""
        places: Ints = self._num_tokens[batch_rows.rows]
        self.append_each(batch_rows, PROMISED)
        return places

    def note(self, batch_rows: BatchRows, places: Ints, token_ids: Ints) -> None:
        """Write tokens [N] into places that were kept for them."""
        self._token_ids[batch_rows.rows, places] = token_ids

    def positions_of(self, batch_rows: BatchRows) -> Ints:
        """Return how long the outputs of these sequences are."""
        positions: Ints = self._num_tokens[batch_rows.index] - batch_rows.num_prompt_tokens
        return positions

    def forget_last(self, sequence: RankSequence, count: int) -> None:
        """Let so many of a sequence's last tokens be unknown again; they lie there until others are written."""
        self._num_tokens[sequence.row] -= count

    def read(self, sequence: RankSequence, start: int, end: int) -> Ints:
        """Return what lies at these places of a sequence, known or not."""
        tokens: Ints = self._token_ids[sequence.row, start:end]
        return tokens

    def following(self, packed: PackedInput) -> Ints:
        """Return the tokens behind those of a pass, [T]."""
        rows = packed.batch_rows.rows.repeat(np.diff(packed.query_starts))
        tokens: Ints = self._token_ids[rows, packed.positions + 1]
        return tokens

    def blocks_of(self, sequence: RankSequence, num_tokens: int) -> Ints:
        """Return the blocks in which its first tokens lie, in the first layer group."""
        blocks: Ints = self._tables[0][sequence.row, : -(-num_tokens // self._block_size)]
        return blocks

    def num_places(self, sequence: RankSequence) -> int:
        """Return how many tokens its blocks in the first layer group hold."""
        return sequence.num_blocks[0] * self._block_size

    def pack(self, batch: Batch) -> PackedInput:
        """Return the arrays of this batch's forward pass."""
        size, batch_rows = self._block_size, self._line_up(batch.request_ids)
        starts = [scheduled.start for scheduled in batch.sequences]
        ends = [scheduled.end for scheduled in batch.sequences]
        context_lens = np.fromiter(ends, np.int64, len(ends))
        if sum(ends) - sum(starts) == len(ends):  # all decode
            spans = _Rows(self._counting[: len(ends) + 1], batch_rows.rows, context_lens - 1)
        else:
            spans = _locate(batch_rows.rows, np.array(starts), context_lens)
        row_of, positions = spans.row_of, spans.positions
        num_columns = -(-max(ends) // size)
        looks_ahead = self._images_are_whole and batch_rows.seeing
        last_seen = _look_ahead(batch_rows, positions, spans.query_starts) if looks_ahead else None
        columns = positions // size
        offsets = positions - columns * size
        groups = tuple(
            AttentionMetadata(
                query_starts=spans.query_starts,
                context_lens=context_lens,
                block_tables=batch_rows.take(table, num_columns),
                slot_mapping=table[row_of, columns] * size + offsets,
                positions=positions,
                block_size=size,
                window=window,
                last_seen=last_seen,
            )
            for table, window in zip(self._tables, self._windows, strict=True)
        )
        tokens = self._token_ids[row_of, positions]
        images = _place_images(batch_rows, batch, spans.query_starts) if batch_rows.seeing else ()
        rope = _turn(batch_rows, positions, spans.query_starts) if self._image_merge and batch_rows.seeing else None
        lora_slots = _find_adapters(batch_rows, positions, spans.query_starts)
        virtual = find_virtual_rows(batch_rows, batch, spans.query_starts) if batch_rows.prompted else ()
        return PackedInput(batch_rows, tokens, positions, spans.query_starts, groups, lora_slots, images, virtual, rope)

    def _line_up(self, request_ids: list[str]) -> BatchRows:
        last, before = self._lineups
        if request_ids == last.request_ids:
            return last
        if request_ids != before.request_ids:
            before = BatchRows([self._sequences[request_id] for request_id in request_ids])
        self._lineups = before, last
        return before

    def _add(self, new: NewSequence) -> None:
        row = self._free_rows.pop()
        sequence = RankSequence(new, row, self._token_ids, self._num_tokens, len(self._windows))
        sequence.source_end = source_room(new.num_source_tokens, self._block_size)
        self._sequences[new.request_id] = sequence
        if new.images and self._image_merge:
            sequence.rope = prompt_positions(new.images, len(new.prompt_token_ids), self._image_merge)

    def _write_drafts(self, drafted: Sequence[ScheduledSequence]) -> None:
        """Put drafts behind the tokens that count."""
        if not drafted:
            return
        drafts = [scheduled.draft_token_ids for scheduled in drafted]
        counts = np.fromiter(map(len, drafts), np.int64, len(drafts))
        rows = np.array([self._sequences[scheduled.request_id].row for scheduled in drafted])
        starts = np.array([scheduled.end for scheduled in drafted]) - counts
        self._token_ids[rows.repeat(counts), _places(starts, counts)] = [*chain.from_iterable(drafts)]

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


def _find_adapters(batch_rows: BatchRows, positions: Ints, query_starts: Ints) -> Ints | None:
    """Return where each row's adapter lies, [T], -1 = it has none; None = no row has one."""
    if batch_rows.lora_slots is None:
        return None
    counts = np.diff(query_starts)
    slots = np.repeat(batch_rows.lora_slots, counts)
    if batch_rows.lora_starts is None:
        return slots
    slots[positions < np.repeat(batch_rows.lora_starts, counts)] = -1
    return slots if (slots >= 0).any() else None


def _place_images(batch_rows: BatchRows, batch: Batch, query_starts: Ints) -> tuple[Placed, ...]:
    return tuple(
        run
        for index, sequence in batch_rows.seeing
        for run in place(
            sequence.images, batch.sequences[index].start, batch.sequences[index].end, int(query_starts[index])
        )
    )


def _turn(batch_rows: BatchRows, positions: Ints, query_starts: Ints) -> Ints:
    """Return the positions [3, T] of a pass in which sequences have images."""
    rope = np.tile(positions, (3, 1))
    for index, sequence in batch_rows.seeing:
        if sequence.rope is not None:
            rows = slice(query_starts[index], query_starts[index + 1])
            rope[:, rows] = span_positions(sequence.rope, positions[rows])
    return rope


def _look_ahead(batch_rows: BatchRows, positions: Ints, query_starts: Ints) -> Ints:
    """Return up to which position each row sees, [T], where an image's tokens see each other."""
    last_seen = positions.copy()
    for index, sequence in batch_rows.seeing:
        rows = slice(query_starts[index], query_starts[index + 1])
        own = positions[rows]
        for image in sequence.images:
            for first, count in image.spans:
                last_seen[rows][(first <= own) & (own < first + count)] = first + count - 1
    return last_seen


def _locate(rows: Ints, starts: Ints, ends: Ints) -> _Rows:
    lengths = ends - starts
    query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=query_starts[1:])
    return _Rows(query_starts, np.repeat(rows, lengths), _places(starts, lengths))


def _places(starts: Ints, counts: Ints) -> Ints:
    """Return start, start + 1, … for each run, so many of each."""
    places: Ints = np.arange(counts.sum()) + (starts - counts.cumsum() + counts).repeat(counts)
    return places
