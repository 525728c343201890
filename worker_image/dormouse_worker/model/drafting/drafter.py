"""Proposes by a small model what a big one may say next: over the same sequences, in cache layers behind its own.

Behind a pass of the target, for each sequence of which drafts are wanted:

    known       … 17  4          the draft model first computes what it has not seen of these: a hole, see `Reach`
    proposes          9  5  2    sampled one by one, as the target samples: with the sequence's own random numbers
    afterwards  … 17  4          nobody has said 9 5 2: what lies in the cache for them the next pass writes over

What it says decides nothing: the target takes a draft only where it says the same. So whatever goes wrong here costs
time alone, and is told as `has_failed`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dormouse_worker.engine.batch import Batch, Drafts, ModelOutput, Proposals, ScheduledSequence
from dormouse_worker.model.batch_rows import RankSequence
from dormouse_worker.model.drafting.reach import Reach
from dormouse_worker.model.forward.choose import ForwardPaths
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.sampling.answers import Answers
from dormouse_worker.model.sampling.logit_rows import LogitRows

logger = logging.getLogger(__name__)

MAX_HOLE_TOKENS = 512  # that one pass fills, over all sequences: all wait for it between their tokens


@dataclass(slots=True)
class _Line:
    """A sequence of which drafts are wanted."""

    sequence: RankSequence
    num_known: int
    num_wanted: int
    start: int  # what is computed of it before this
    said: list[int]

    @property
    def end(self) -> int:
        """Return how many tokens there are, proposed ones included."""
        return self.num_known + len(self.said)


class Drafter:
    """Computes with the draft model. Owns how far it has come."""

    def __init__(
        self,
        paths: ForwardPaths,
        answers: Answers,
        sequences: InputBatch,
        reach: Reach,
        max_hole_tokens: int = MAX_HOLE_TOKENS,
        *,
        is_there: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`paths` are the draft model's over its layers of the cache; `sequences` are the target's.

        The model may not come back from a sleep, which shows after passes have begun: so it is asked each time.
        """
        self._is_there = is_there
        self._paths = paths
        self._answers = answers
        self._sequences = sequences
        self._reach = reach
        self._max_hole_tokens = max_hole_tokens
        self._clock = clock
        self._proposed: dict[str, tuple[int, list[int]]] = {}  # where, and what; the cache has all but the last

    def __repr__(self) -> str:
        return f"Drafter({self._paths!r}, {self._reach!r})"

    def follow(self, batch: Batch) -> None:
        """Take what a batch brings, behind the sequences and before anything is computed."""
        self._reach.follow(batch)
        for request_id in (*self._proposed,) if batch.is_fresh else batch.released:
            self._proposed.pop(request_id, None)

    def propose(self, batch: Batch, output: ModelOutput) -> Proposals | None:
        """Return drafts behind what a pass has said and the sequences have taken; None = nobody wanted any."""
        silent = {*output.not_finite, *output.stuck}
        wanting = [each for each in batch.sequences if each.num_wanted and each.request_id not in silent]
        if not wanting:
            return None
        if not self._is_there():
            return Proposals({}, has_failed=True)
        began_s = self._clock()
        lines = [line for line in map(self._begin, wanting) if line.num_wanted > 0]
        try:
            ready = self._fill_holes(lines)
            seconds_per_token = self._run(ready)
        except Exception:  # whatever the model raises costs its drafts and nothing else
            logger.exception("the draft model's pass over %d sequences failed", len(lines))
            self._reach.doubt([line.sequence.request_id for line in lines])
            return Proposals({}, self._clock() - began_s, has_failed=True)
        said: dict[str, Drafts] = {line.sequence.request_id: tuple(line.said) for line in ready if line.said}
        return Proposals(said, self._clock() - began_s, seconds_per_token)

    def _begin(self, scheduled: ScheduledSequence) -> _Line:
        sequence = self._sequences.sequence(scheduled.request_id)
        sequence.masks = ()  # were the last pass's; its grammar has its say when drafts are scored
        num_known = sequence.num_prompt_tokens + sequence.position
        self._confirm(sequence, num_known)
        start = self._reach.find(sequence, num_known - 1)
        most = min(sequence.num_left, self._sequences.num_places(sequence) - num_known + 1)
        return _Line(sequence, num_known, min(scheduled.num_wanted, most), start, [])

    def _confirm(self, sequence: RankSequence, num_known: int) -> None:
        """Of what was proposed last, what the sequence says by now is computed."""
        place, proposed = self._proposed.pop(sequence.request_id, (0, []))
        if not proposed:
            return
        end = min(place + len(proposed) - 1, num_known - 1)
        said = self._sequences.read(sequence, place, max(place, end)).tolist()
        wrong = (i for i, (one, other) in enumerate(zip(said, proposed, strict=False)) if one != other)
        self._reach.note(sequence, place + next(wrong, len(said)))

    def _fill_holes(self, lines: Sequence[_Line]) -> list[_Line]:
        """Compute what is missing but for the last two tokens, within bounds; return those that miss no more."""
        left, ready, spans = self._max_hole_tokens, [], []
        for line in lines:
            end = line.num_known - 1
            if end - line.start > 1:
                stop = min(end, line.start + left)
                if stop > line.start:
                    spans.append((line, line.start, stop))
                left -= stop - line.start
                line.start = stop
            if line.start >= end - 1:
                ready.append(line)
        if spans:
            self._compute(spans, samples=False)
            for line, _, stop in spans:
                self._reach.note(line.sequence, stop)
        return ready

    def _run(self, lines: Sequence[_Line]) -> float:
        """Let each line say what is wanted of it; return how long a token of all took."""
        began_s, active, num_rows = self._clock(), list(lines), 0
        try:
            while active:
                num_rows += len(active)
                self._say(active)
                active = [line for line in active if len(line.said) < line.num_wanted]
        finally:
            self._take_back(lines)
        return (self._clock() - began_s) * len(lines) / max(1, num_rows)

    def _say(self, lines: list[_Line]) -> None:
        """Sample one token behind each line; lines that have none to say are done."""
        sampled = self._compute([(line, line.start, line.end) for line in lines], samples=True)
        for line in lines:
            line.start = line.end
            token = sampled.get(line.sequence.request_id)
            if token is None:
                line.num_wanted = 0
                continue
            line.said.append(token)
            self._sequences.append(line.sequence.request_id, token)

    def _compute(self, spans: Sequence[tuple[_Line, int, int]], *, samples: bool) -> dict[str, int]:
        """Run a pass over these parts of sequences; return what the last row of each says, where it is asked."""
        scheduled = [ScheduledSequence(line.sequence.request_id, start, end, (), samples) for line, start, end in spans]
        batch = Batch(is_fresh=False, released=(), swap_out=(), swap_in=(), new=(), sequences=tuple(scheduled))
        packed = replace(self._sequences.pack(batch), lora_slots=None, virtual=())
        rows = packed.query_starts[1:] - 1
        if not samples:
            self._paths.compute(packed, rows[-1:])
            return {}
        logits = self._paths.compute(packed, rows)
        wanted = LogitRows(rows, np.arange(len(rows)), packed.batch_rows, ())
        output = self._answers.answer(wanted, logits, self._sequences)
        silent = {*output.not_finite, *output.stuck}
        return {each.request_id: each.token_id for each in output.sampled if each.request_id not in silent}

    def _take_back(self, lines: Sequence[_Line]) -> None:
        """Nobody has said what was proposed; what was known before is computed now."""
        for line in lines:
            self._sequences.forget_last(line.sequence, len(line.said))
            if line.said:
                self._reach.note(line.sequence, line.num_known)
                self._proposed[line.sequence.request_id] = line.num_known, line.said
