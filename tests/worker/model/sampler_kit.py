"""For the sampler's tests: a builder of rows, and the sampler once more in plain loops over float64 numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import Sampling
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.sampling.exact_softmax import masses_of, weigh
from dormouse_worker.model.sampling.filters import least_weights
from dormouse_worker.model.sampling.sampler import _edit, sample

OUTSIDE = 10**6  # a token that no test's vocabulary has


@dataclass(frozen=True)
class Row:
    """Implements `SamplingRow` with what it is given."""

    sampling: Sampling
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    allowed: npt.NDArray[np.uint8] | None = None

    @property
    def position(self) -> int:
        """Return how long the output is."""
        return len(self.output_token_ids)


def row(position=0, *, prompt=(), output=None, bound_to=None, **sampling):
    """Return a row; without an output, one of `position` tokens that no parameter knows.

    `bound_to` are the tokens that its grammar allows.
    """
    allowed = None if bound_to is None else packed_bits(bound_to)
    if allowed is not None:
        sampling["grammar"] = Grammar("made by hand", ())
    return Row(make_sampling(**sampling), prompt, [OUTSIDE] * position if output is None else output, allowed)


def packed_bits(token_ids, num_bytes=8):
    """Return a mask that allows these tokens."""
    bits = np.zeros(num_bytes * 8, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little")


def random_logits(num_rows, vocab_size, *, seed=0, scale=3.0):
    """Return normally distributed logits: no two are equal."""
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def tokens_of(logits, rows):
    """Return the chosen tokens."""
    return [choice.token_id for choice in sample(logits, rows)]


def scores_of(logits, *rows):
    """Return what the rows make of the logits before they choose, [N, V]."""
    return _edit(logits, rows)


def distribution_of(logits, *rows):
    """Return the probabilities that the sampler draws from, [N, V]; temperatures above 0 only."""
    samplings = [row.sampling for row in rows]
    weights = weigh(_edit(logits, rows), [sampling.temperature for sampling in samplings])[:, : logits.shape[-1]]
    least = least_weights(weights, samplings)
    kept = masses_of(weights if least is None else weights * (weights >= least)).double()
    return (kept / kept.sum(-1, keepdim=True)).float()


def reference_scores(logits, row):
    """Return the edited scores of one row, a list of numbers."""
    sampling, output = row.sampling, list(row.output_token_ids)
    scores = list(logits)
    vocabulary = range(len(scores))
    early_stops = sampling.stop_token_ids if len(output) < sampling.min_tokens else ()
    completing = {word[-1] for word in sampling.bad_words_token_ids if _ends_with(output, word[:-1])}
    for forbidden in (
        {token for token in vocabulary if sampling.allowed_token_ids and token not in sampling.allowed_token_ids},
        completing,
        set(early_stops),
    ):
        masked = [-math.inf if token in forbidden else scores[token] for token in vocabulary]
        if any(score > -math.inf for score in masked):
            scores = masked
    for token in vocabulary:
        scores[token] += sampling.logit_bias.get(token, 0.0)
        if token in row.prompt_token_ids or token in output:
            factor = sampling.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        if token in output:
            scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    return scores


def reference_distribution(logits, row):
    """Return the probabilities of one row, a list of numbers; without equal scores."""
    sampling = row.sampling
    scores = [score / sampling.temperature for score in reference_scores(logits, row)]
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, covered, kept = sum(weights[token] for token in order), 0.0, []
    for token in order:
        if not kept or covered < sampling.top_p * total:
            kept.append(token)
        covered += weights[token]
    kept = [token for token in kept if weights[token] >= sampling.min_p]
    mass = sum(weights[token] for token in kept)
    return [weights[token] / mass if token in kept else 0.0 for token in range(len(weights))]


def reference_token(probabilities, uniform):
    """Return the first token at which the running sum exceeds the number."""
    covered = 0.0
    for token, probability in enumerate(probabilities):
        covered += probability
        if covered > uniform:
            return token
    raise AssertionError(f"the probabilities sum up to {covered}, not above {uniform}")


def _ends_with(output, words):
    return not words or output[-len(words) :] == list(words)
