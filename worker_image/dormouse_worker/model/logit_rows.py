"""Chooses the rows of a forward pass whose logits are needed: where a token is sampled, and prompts asked about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dormouse_worker.engine.batch import Batch
from dormouse_worker.model.attention.interface import Ints
from dormouse_worker.model.input_batch import InputBatch, PackedInput


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
    sampled: Ints  # which of them are sampled from, in the order of the batch
    prompt_parts: tuple[PromptPart, ...]


def choose_logit_rows(batch: Batch, packed: PackedInput, known: InputBatch) -> LogitRows:
    """Return the rows. The last prompt token's row is sampled from, all before it tell about the token after."""
    rows: list[int] = []
    sampled: list[int] = []
    parts: list[PromptPart] = []
    for sequence, first_row in zip(batch.sequences, packed.query_starts.tolist(), strict=False):
        state = known.sequence(sequence.request_id)
        end = min(sequence.end, len(state.prompt_token_ids) - 1)
        if state.sampling.prompt_logprobs is not None and sequence.start < end:
            span = slice(len(rows), len(rows) + end - sequence.start)
            followers = state.prompt_token_ids[sequence.start + 1 : end + 1]
            parts.append(PromptPart(sequence.request_id, span, followers, state.sampling.prompt_logprobs))
            rows.extend(range(first_row, first_row + end - sequence.start))
        if sequence.samples:
            sampled.append(len(rows))
            rows.append(first_row + sequence.num_tokens - 1)
    return LogitRows(np.array(rows, dtype=np.int64), np.array(sampled, dtype=np.int64), tuple(parts))
