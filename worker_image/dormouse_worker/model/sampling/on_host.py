"""What is said to the logits of a pass that our kernels computed: they are arrays, and no torch is asked.

The same as `sampler` says in torch, and in its order. What the kernels do not know, masks and log-probabilities, is
done here, row by row: few ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Protocol

import numpy as np

from dormouse_worker.common.sampling import has_edits
from dormouse_worker.engine.batch import ModelOutput, SampledToken
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.sampling.host_logprobs import prompt_logprobs, sampled_logprobs
from dormouse_worker.model.sampling.host_masks import mask
from dormouse_worker.model.sampling.logit_rows import LogitRows
from dormouse_worker.model.sampling.native_sampler import Bools, NativeSampler
from dormouse_worker.model.sampling.rules import FORBIDDEN, NOTHING_LEFT
from dormouse_worker.model.sampling.sampling_row import Bits, SamplingRow
from dormouse_worker.model.scratch import Floats


class OwnedRow(SamplingRow, Protocol):
    """What a grammar allows in a row, and whose it is."""

    @property
    def request_id(self) -> str:
        """Return the request's id."""

    @property
    def allowed(self) -> Bits | None:
        """See `SamplingRow`."""


def answer(wanted: LogitRows, logits: Floats, sequences: InputBatch, native: NativeSampler) -> ModelOutput:
    """Return what is said to the wanted rows' logits, of `sequences` that the pass was packed from."""
    if wanted.prompt_parts or not wanted.batch_rows.are_plain:
        return _answer_each(wanted, logits, sequences, native)
    return _answer_plain(wanted, logits, sequences, native)


def _answer_plain(wanted: LogitRows, logits: Floats, sequences: InputBatch, native: NativeSampler) -> ModelOutput:
    batch_rows, scored = wanted.batch_rows, wanted.scored
    rows: Sequence[OwnedRow] = ()
    are_whole = np.ones(len(logits), dtype=np.bool_)
    if batch_rows.bound:
        rows = batch_rows.sequences if scored is None else scored.rows
        tokens, are_whole = _choose_bound(native, logits, wanted, sequences.positions_of(batch_rows), rows)
    elif batch_rows.take_likeliest:
        tokens = logits.argmax(-1)
    else:
        tokens = _choose_natively(native, logits, wanted, sequences.positions_of(batch_rows))
    chosen = logits[np.arange(len(tokens)), tokens]
    request_ids = batch_rows.request_ids
    if scored is not None:
        kept = scored.accept(tokens, np.isfinite(chosen) & are_whole)
        request_ids, tokens, chosen, are_whole = (
            scored.request_ids(kept),
            tokens[kept],
            chosen[kept],
            are_whole[kept],
        )
        rows = [rows[int(row)] for row in kept] if rows else ()
    stuck = _find_stuck(chosen, rows)
    odd = _find_odd(np.isfinite(chosen) & are_whole, request_ids)
    sampled = list(map(SampledToken, request_ids, tokens.tolist()))
    return ModelOutput(sampled, not_finite=tuple(key for key in odd if key not in stuck), stuck=stuck)


def _answer_each(wanted: LogitRows, logits: Floats, sequences: InputBatch, native: NativeSampler) -> ModelOutput:
    prompt = {
        part.request_id: prompt_logprobs(logits[part.rows], part.token_ids, part.num_top)
        for part in wanted.prompt_parts
    }
    odd = dict.fromkeys(request_id for request_id, rows in prompt.items() if any(isnan(row.sampled) for row in rows))
    output = _sample_each(wanted, logits[wanted.sampled], sequences, native)
    not_finite = tuple(dict.fromkeys((*output.not_finite, *odd)))
    return ModelOutput(output.sampled, prompt, not_finite, output.stuck)


def _sample_each(wanted: LogitRows, raw: Floats, sequences: InputBatch, native: NativeSampler) -> ModelOutput:
    """Return what is sampled from these rows [R, V], a copy; of drafts those that count."""
    batch_rows, scored = wanted.batch_rows, wanted.scored
    if not len(batch_rows):
        return ModelOutput([])
    rows: Sequence[OwnedRow] = batch_rows.sequences if scored is None else scored.rows
    scores = raw.copy()
    for i, row in enumerate(rows):
        if has_edits(row.sampling, row.position):
            mask(scores[i], row)
    tokens = _choose_natively(native, scores, wanted, sequences.positions_of(batch_rows))
    are_finite = np.isfinite(raw.max(-1))
    chosen = scores[np.arange(len(rows)), tokens]
    are_possible = np.array([row.allowed is None for row in rows]) | (chosen != FORBIDDEN)
    kept = np.arange(len(rows)) if scored is None else scored.accept(tokens, are_finite & are_possible)
    told = sampled_logprobs(raw, tokens, rows, kept)
    mine = [(i, rows[i].request_id) for i in kept.tolist()]
    return ModelOutput(
        [SampledToken(request_id, int(tokens[i]), told.get(i)) for i, request_id in mine],
        not_finite=tuple(dict.fromkeys(request_id for i, request_id in mine if not are_finite[i])),
        stuck={request_id: NOTHING_LEFT for i, request_id in mine if not are_possible[i]},
    )


def _choose_natively(native: NativeSampler, logits: Floats, wanted: LogitRows, positions: Ints) -> Ints:
    """Return a token for each row; `positions` are the sequences'."""
    scored = wanted.scored
    if scored is None:
        return native.choose(logits, wanted.batch_rows.draws, positions)
    return native.choose(logits, scored.draws, scored.positions(positions))


def _choose_bound(
    native: NativeSampler, logits: Floats, wanted: LogitRows, positions: Ints, rows: Sequence[OwnedRow]
) -> tuple[Ints, Bools]:
    """Return the same where grammars bind rows, and which rows were finite before masks, which might hide it."""
    scored, allowed = wanted.scored, [row.allowed for row in rows]
    draws = wanted.batch_rows.draws if scored is None else scored.draws
    places = positions if scored is None else scored.positions(positions)
    return native.choose_bound(logits, draws, places, allowed)


def _find_stuck(chosen: Floats, rows: Sequence[OwnedRow]) -> dict[str, str]:
    """Return the bound ones of these rows, none or all, whose masks left nothing: what was chosen is forbidden."""
    scores = zip(rows, chosen.tolist(), strict=bool(rows))
    return {s.request_id: NOTHING_LEFT for s, score in scores if s.allowed is not None and score == FORBIDDEN}


def _find_odd(are_finite: Bools, request_ids: Sequence[str]) -> tuple[str, ...]:
    """Return whose rows [N] are not finite; the chosen token's logit tells of a row, see `sampler`."""
    if are_finite.all():
        return ()
    return tuple(dict.fromkeys(request_ids[int(row)] for row in np.flatnonzero(~are_finite)))
