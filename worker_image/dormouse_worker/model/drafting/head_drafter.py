"""Proposes by an EAGLE head what its model may say next, from the states of the model's own passes.

Behind each pass, whoever wants drafts: the head has to read every token while its state is there.

    known       … 17  4  9       the pass was over 17 and 4, and 9 came of it
    reads       17>4  4>9        the state at a token and the token behind it: its keys are right from now on
    proposes              5  2   of the last one 5; of its own state there and 5, 2
    afterwards  … 17  4  9       what lies in the cache for 5 and 2 the next pass writes over

What it says decides nothing: see `drafter`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dormouse_worker.engine.batch import Batch, Drafts, ModelOutput, Proposals, ScheduledSequence
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.batch_rows import BatchRows, RankSequence
from dormouse_worker.model.conclusion import Answer
from dormouse_worker.model.input_batch import InputBatch, PackedInput
from dormouse_worker.model.sampling.logit_rows import LogitRows
from dormouse_worker.model.tensors import Tensor

logger = logging.getLogger(__name__)

Span = tuple[str, int, int]  # tokens [start, end) of a sequence


class HeadPasses(Protocol):
    """Who computes with a head, over its part of its model's cache."""

    def read(self, packed: PackedInput, token_ids: Ints, states: Ints, rows: Ints) -> Tensor:
        """Return logits [len(rows), V] of the ascending rows that are wanted, whose own states are kept.

        Row i of `packed` [T] is the state in the row `states[i]` of the model's last pass, and `token_ids[i]` what
        stands behind it.
        """

    def go_on(self, packed: PackedInput, token_ids: Ints, states: Ints, rows: Ints) -> Tensor:
        """Do the same with the states that its own last pass kept."""


@dataclass(slots=True)
class _Line:
    """What a pass computed of a sequence, up to the token before the last that is known now."""

    sequence: RankSequence
    start: int
    end: int
    row: int  # of its first token in the pass
    num_wanted: int
    said: list[int]


class HeadDrafter:
    """Asks the head. What it knows of sequences is its runner's."""

    def __init__(
        self,
        passes: HeadPasses,
        sequences: InputBatch,
        answer: Answer,
        *,
        is_there: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._passes = passes
        self._sequences = sequences
        self._answer = answer
        self._is_there = is_there
        self._clock = clock

    def __repr__(self) -> str:
        return f"HeadDrafter({self._passes!r})"

    def follow(self, batch: Batch) -> None:
        """See `runner.Proposer`: nothing is kept of a sequence from pass to pass."""

    def propose(self, batch: Batch, output: ModelOutput) -> Proposals | None:
        """Read what a pass computed; return drafts behind what it said and the sequences have taken.

        None = the head is not there, and nobody wants any.
        """
        is_asked = any(each.num_wanted for each in batch.sequences)
        if not self._is_there():
            return Proposals({}, has_failed=True) if is_asked else None
        began_s = self._clock()
        lines = self._begin(batch, {*output.not_finite, *output.stuck})
        asking = [line for line in lines if line.num_wanted > 0]
        try:
            num_rows = self._run(lines, asking) if lines else 0
        except Exception:  # whatever it raises costs its drafts and nothing else
            logger.exception("the head's pass over %d sequences failed", len(lines))
            return Proposals({}, self._clock() - began_s, has_failed=True)
        said: dict[str, Drafts] = {line.sequence.request_id: tuple(line.said) for line in asking if line.said}
        took_s = self._clock() - began_s
        return Proposals(said, took_s, took_s * len(asking) / num_rows if num_rows else 0.0)

    def _begin(self, batch: Batch, silent: set[str]) -> list[_Line]:
        """Return what of the pass is true now: all but drafts that were wrong, and tokens that nothing follows."""
        lines, row = [], 0
        for scheduled in batch.sequences:
            sequence = self._sequences.sequence(scheduled.request_id)
            num_known = sequence.num_prompt_tokens + sequence.position
            end = min(scheduled.end, num_known - 1)
            if end > scheduled.start:
                is_next = end == num_known - 1 and scheduled.request_id not in silent
                num_places = self._sequences.num_places(sequence) - num_known + 1
                wanted = min(scheduled.num_wanted, sequence.num_left, num_places) if is_next else 0
                lines.append(_Line(sequence, scheduled.start, end, row, wanted, []))
            row += scheduled.num_tokens
        return lines

    def _run(self, lines: Sequence[_Line], asking: Sequence[_Line]) -> int:
        """Read the pass and let each line say what is wanted of it; return how many tokens were asked for."""
        packed = self._pack([(line.sequence.request_id, line.start, line.end) for line in lines])
        read = np.concatenate([np.arange(line.row, line.row + line.end - line.start) for line in lines])
        is_asked = np.fromiter((line.num_wanted > 0 for line in lines), np.bool_, len(lines))
        rows, active, num_rows = (packed.query_starts[1:] - 1)[is_asked], list(asking), 0
        for line in asking:
            line.sequence.masks = ()  # were the last pass's; its grammar has its say when drafts are scored
        logits = self._passes.read(packed, self._sequences.following(packed), read, rows)
        try:
            while active:
                num_rows += len(active)
                kept = self._say(active, rows, logits)
                active = [active[place] for place in kept]
                if active:
                    ends = [(line, line.end + len(line.said)) for line in active]
                    packed = self._pack([(line.sequence.request_id, end - 1, end) for line, end in ends])
                    rows = np.arange(len(active))
                    logits = self._passes.go_on(packed, self._sequences.following(packed), np.array(kept), rows)
        finally:
            for line in asking:
                self._sequences.forget_last(line.sequence, len(line.said))
        return num_rows

    def _say(self, active: Sequence[_Line], rows: Ints, logits: Tensor) -> list[int]:
        """Sample one token behind each line; return the places of those that go on."""
        batch_rows = BatchRows([line.sequence for line in active])
        output = self._answer(LogitRows(rows, np.arange(len(rows)), batch_rows, ()), logits, self._sequences)
        silent = {*output.not_finite, *output.stuck}
        sampled = {each.request_id: each.token_id for each in output.sampled if each.request_id not in silent}
        kept = []
        for place, line in enumerate(active):
            token = sampled.get(line.sequence.request_id)
            if token is not None:
                line.said.append(token)
                self._sequences.append(line.sequence.request_id, token)
                if len(line.said) < line.num_wanted:
                    kept.append(place)
        return kept

    def _pack(self, spans: Sequence[Span]) -> PackedInput:
        scheduled = tuple(ScheduledSequence(*span, (), samples=True) for span in spans)
        batch = Batch(is_fresh=False, released=(), swap_out=(), swap_in=(), new=(), sequences=scheduled)
        return self._sequences.pack(batch)
