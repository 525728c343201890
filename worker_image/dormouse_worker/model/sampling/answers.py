"""What is said to the logits of a pass: tokens, log probabilities, and whose logits were not finite."""

from __future__ import annotations

from math import isnan

import numpy as np
import torch

from dormouse_worker.engine.batch import ModelOutput, SampledToken
from dormouse_worker.model.attention.interface import Ints
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.sampling.logit_rows import LogitRows
from dormouse_worker.model.sampling.native_sampler import NativeSampler
from dormouse_worker.model.sampling.sampler import Choice, are_chosen_finite, choose, prompt_logprobs, sample
from dormouse_worker.model.scratch import Floats


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
        batch_rows, native = wanted.batch_rows, self._native
        if isinstance(logits, torch.Tensor):
            return _answer_in_torch(wanted, logits, native)
        if wanted.prompt_parts or native is None or not batch_rows.are_plain:
            return _answer_in_torch(wanted, torch.from_numpy(logits), native)
        if batch_rows.take_likeliest:
            tokens = logits.argmax(-1)
        else:
            tokens = native.choose(logits, batch_rows.draws, sequences.positions_of(batch_rows))
        sampled = list(map(SampledToken, batch_rows.request_ids, tokens.tolist()))
        return ModelOutput(sampled, not_finite=_find_odd(logits, tokens, batch_rows))


def _find_odd(logits: Floats, tokens: Ints, batch_rows: BatchRows) -> tuple[str, ...]:
    """Return whose chosen tokens have logits that are not finite; the chosen one's tells of the row, see `sampler`."""
    are_finite = np.isfinite(logits[np.arange(len(tokens)), tokens])
    if are_finite.all():
        return ()
    return tuple(batch_rows.request_ids[row] for row in np.flatnonzero(~are_finite))


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
    choices = _sample(wanted.batch_rows, logits if is_all else logits[wanted.sampled], native)
    odd = {request_id: None for request_id, choice in choices if not choice.is_finite}
    odd |= dict.fromkeys(request_id for request_id, rows in prompt.items() if any(isnan(row.sampled) for row in rows))
    sampled = [SampledToken(request_id, choice.token_id, choice.logprobs) for request_id, choice in choices]
    return ModelOutput(sampled, prompt, tuple(odd))


def _sample(batch_rows: BatchRows, logits: torch.Tensor, native: NativeSampler | None) -> list[tuple[str, Choice]]:
    """Return one choice for each sequence, which has that row of the logits."""
    if not len(batch_rows):
        return []
    return list(zip(batch_rows.request_ids, sample(logits, batch_rows.sequences, native), strict=True))
