"""What is said to the logits of a pass: tokens, log probabilities, and whose logits were not finite."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Protocol

import numpy as np
import torch

from dormouse_worker.engine.batch import ModelOutput, SampledToken
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.sampling.logit_rows import LogitRows
from dormouse_worker.model.sampling.masks import FORBIDDEN
from dormouse_worker.model.sampling.native_sampler import Bools, NativeSampler
from dormouse_worker.model.sampling.sampler import Choice, are_chosen_finite, choose, prompt_logprobs, sample
from dormouse_worker.model.sampling.sampling_row import Bits
from dormouse_worker.model.scratch import Floats

NOTHING_LEFT = (
    "nothing that the grammar allows is left by allowed_token_ids and bad_words, or in the model's vocabulary"
)


class OwnedRow(Protocol):
    """What a grammar allows in a row, and whose it is."""

    @property
    def request_id(self) -> str:
        """Return the request's id."""

    @property
    def allowed(self) -> Bits | None:
        """See `SamplingRow`."""


class Answers:
    """Chooses tokens by our kernels where they can, else in torch: the same tokens."""

    def __init__(self, native: NativeSampler | None) -> None:
        self._native = native

    def __repr__(self) -> str:
        return f"Answers({self._native!r})"

    def answer(self, wanted: LogitRows, logits: torch.Tensor | Floats, sequences: InputBatch) -> ModelOutput:
        """Return what is said to the wanted rows' logits, of `sequences` that the pass was packed from.

        Without torch where it can be: cold, its calls take some 20 µs each.
        """
        batch_rows, native, scored = wanted.batch_rows, self._native, wanted.scored
        if isinstance(logits, torch.Tensor):
            return _answer_in_torch(wanted, logits, native)
        if wanted.prompt_parts or native is None or not batch_rows.are_plain:
            return _answer_in_torch(wanted, torch.from_numpy(logits), native)
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


@torch.inference_mode()
def choose_on_device(logits: torch.Tensor, batch_rows: BatchRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens [N] of rows where the logits alone decide, and whether theirs are finite; waits for nobody."""
    scores = logits.float()
    tokens = choose(scores, batch_rows.sequences)
    return tokens, are_chosen_finite(scores, tokens)


@torch.inference_mode()
def _answer_in_torch(wanted: LogitRows, logits: torch.Tensor, native: NativeSampler | None) -> ModelOutput:
    prompt = {
        part.request_id: prompt_logprobs(logits[part.rows], part.token_ids, part.num_top)
        for part in wanted.prompt_parts
    }
    is_all = len(wanted.sampled) == len(logits)  # rows keep their order: nothing to choose, nothing to copy
    choices = _sample(wanted, logits if is_all else logits[wanted.sampled], native)
    odd = {request_id: None for request_id, choice in choices if not choice.is_finite}
    odd |= dict.fromkeys(request_id for request_id, rows in prompt.items() if any(isnan(row.sampled) for row in rows))
    sampled = [SampledToken(request_id, choice.token_id, choice.logprobs) for request_id, choice in choices]
    stuck = {request_id: NOTHING_LEFT for request_id, choice in choices if not choice.is_possible}
    return ModelOutput(sampled, prompt, tuple(odd), stuck)


def _sample(wanted: LogitRows, logits: torch.Tensor, native: NativeSampler | None) -> list[tuple[str, Choice]]:
    """Return one choice for each row of the logits, and whose it is; of drafts those that count."""
    batch_rows, scored = wanted.batch_rows, wanted.scored
    if not len(batch_rows):
        return []
    if scored is None:
        return list(zip(batch_rows.request_ids, sample(logits, batch_rows.sequences, native), strict=True))
    choices = sample(logits, scored.rows, native)
    tokens = np.array([choice.token_id for choice in choices])
    kept = scored.accept(tokens, np.array([choice.is_finite and choice.is_possible for choice in choices]))
    return list(zip(scored.request_ids(kept), (choices[int(row)] for row in kept), strict=True))
