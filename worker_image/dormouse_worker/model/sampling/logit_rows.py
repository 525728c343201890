"""Chooses the rows of a forward pass whose logits are needed: where a token is sampled, and prompts asked about."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from dormouse_worker.engine.batch import Batch, Drafts
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.batch_rows import BatchRows, RankSequence
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.scored_rows import ScoredRows

_samples, _draft_token_ids = attrgetter("samples"), attrgetter("draft_token_ids")


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A stretch of a prompt whose log-probabilities are wanted."""

    request_id: str
    rows: slice  # of the logits
    token_ids: list[int]  # that followed these rows
    num_top: int


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Rows of the packed input, in their order; the logits have one row for each."""

    rows: Ints  # [R]
    sampled: Ints  # which of them are sampled from
    batch_rows: BatchRows  # whose those are
    prompt_parts: tuple[PromptPart, ...]
    scored: ScoredRows | None = None  # where some of them have several rows, for their drafts

    @property
    def only_logits_count(self) -> bool:
        """Return whether these rows decide all that is wanted: no token before is looked at, nothing else is told."""
        return not self.prompt_parts and self.batch_rows.need_logits_only and self.scored is None

    @property
    def free_rows(self) -> Ints:
        """Return the rows of the logits that alone decide about a token; they are `batch_rows.free`'s."""
        rows: Ints = self.sampled[self.batch_rows.is_free]
        return rows

    def without_free_ones(self) -> tuple[Ints, LogitRows]:
        """Return which rows of the logits are wanted besides those, and the same of them alone."""
        sampled = self.sampled[~self.batch_rows.is_free]
        kept = np.concatenate([*(np.arange(part.rows.start, part.rows.stop) for part in self.prompt_parts), sampled])
        parts, start = [], 0
        for part in self.prompt_parts:
            end = start + part.rows.stop - part.rows.start
            parts.append(PromptPart(part.request_id, slice(start, end), part.token_ids, part.num_top))
            start = end
        rows = LogitRows(self.rows[kept], np.arange(start, len(kept)), self.batch_rows.asking, tuple(parts))
        return kept, rows


def choose_logit_rows(batch: Batch, packed: PackedInput) -> LogitRows:
    """Return the rows. The last prompt token's row is sampled from, all before it tell about the token after."""
    has_drafts = any(map(_draft_token_ids, batch.sequences))
    if all(map(_samples, batch.sequences)) and not packed.batch_rows.ask_for_prompts:
        if has_drafts:  # the last rows of each
            return _choose_last(batch, packed)
        return LogitRows(packed.query_starts[1:] - 1, np.arange(len(packed.batch_rows)), packed.batch_rows, ())
    return _choose(batch, packed)


def _choose_last(batch: Batch, packed: PackedInput) -> LogitRows:
    drafts = [scheduled.draft_token_ids for scheduled in batch.sequences]
    counts = np.fromiter((1 + len(each) for each in drafts), np.int64, len(drafts))
    rows = np.arange(counts.sum()) + (packed.query_starts[1:] - counts.cumsum()).repeat(counts)
    return LogitRows(rows, np.arange(len(rows)), packed.batch_rows, (), ScoredRows(packed.batch_rows, drafts))


def _choose(batch: Batch, packed: PackedInput) -> LogitRows:
    rows: list[int] = []
    sampled: list[int] = []
    sampling: list[RankSequence] = []
    drafts: list[Drafts] = []
    parts: list[PromptPart] = []
    spans = zip(batch.sequences, packed.batch_rows.sequences, packed.query_starts.tolist(), strict=False)
    for scheduled, sequence, first_row in spans:
        end = min(scheduled.end, sequence.num_prompt_tokens - 1)
        num_top = sequence.sampling.prompt_logprobs
        if num_top is not None and scheduled.start < end:
            span = slice(len(rows), len(rows) + end - scheduled.start)
            followers = sequence.prompt_part(scheduled.start + 1, end + 1).tolist()
            parts.append(PromptPart(sequence.request_id, span, followers, num_top))
            rows.extend(range(first_row, first_row + end - scheduled.start))
        if scheduled.samples:
            end_row, num_rows = first_row + scheduled.num_tokens, 1 + len(scheduled.draft_token_ids)
            sampled.extend(range(len(rows), len(rows) + num_rows))
            sampling.append(sequence)
            drafts.append(scheduled.draft_token_ids)
            rows.extend(range(end_row - num_rows, end_row))
    owners = BatchRows(sampling)
    scored = ScoredRows(owners, drafts) if any(drafts) else None
    return LogitRows(np.array(rows, dtype=np.int64), np.array(sampled, dtype=np.int64), owners, tuple(parts), scored)
