"""What is said to the logits of a pass: tokens, log probabilities, and whose logits were not finite."""

from __future__ import annotations

from math import isnan

import numpy as np
import torch

from dormouse_worker.engine.batch import ModelOutput, SampledToken
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.sampling import on_host
from dormouse_worker.model.sampling.logit_rows import LogitRows
from dormouse_worker.model.sampling.native_sampler import NativeSampler
from dormouse_worker.model.sampling.rules import NOTHING_LEFT
from dormouse_worker.model.sampling.sampler import Choice, are_chosen_finite, choose, prompt_logprobs, sample
from dormouse_worker.model.scratch import Floats


class Answers:
    """Chooses tokens on the host where the logits are there, else in torch: the same tokens."""

    def __init__(self, native: NativeSampler | None) -> None:
        self._native = native

    def __repr__(self) -> str:
        return f"Answers({self._native!r})"

    def answer(self, wanted: LogitRows, logits: torch.Tensor | Floats, sequences: InputBatch) -> ModelOutput:
        """Return what is said to the wanted rows' logits, of `sequences` that the pass was packed from.

        Without torch where our kernels computed them: cold, its calls take some 20 µs each.
        """
        if isinstance(logits, torch.Tensor):
            return _answer_in_torch(wanted, logits, self._native)
        assert self._native is not None, "who computes the logits by our kernels samples by them"
        return on_host.answer(wanted, logits, sequences, self._native)


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
