"""What a row must not say, and its logit bias: as `masks`, by the same rules in the same order, for one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.sampling.rules import FORBIDDEN, bad_word_endings
from dormouse_worker.model.sampling.sampling_row import SamplingRow
from dormouse_worker.model.scratch import Floats


def mask(scores: Floats, row: SamplingRow) -> None:
    """Change the scores [V] of a row in place. Penalties are not looked at."""
    sampling, is_bound = row.sampling, row.allowed is not None
    if row.allowed is not None:
        bits = np.unpackbits(row.allowed, count=len(scores), bitorder="little").astype(np.bool_)
        scores[~bits] = FORBIDDEN
    if sampling.allowed_token_ids:
        _allow_only(scores, sampling.allowed_token_ids, yields=not is_bound)
    if sampling.bad_words_token_ids:
        endings = bad_word_endings(sampling.bad_words_token_ids, row.output_token_ids)
        _forbid(scores, endings, yields=not is_bound)
    if row.position < sampling.min_tokens:
        _forbid(scores, sampling.stop_token_ids, yields=True)
    for token_id, bias in sampling.logit_bias.items():
        if 0 <= token_id < len(scores):
            scores[token_id] += np.float32(bias)


def _allow_only(scores: Floats, token_ids: Sequence[int], *, yields: bool) -> None:
    others = np.ones(len(scores), dtype=np.bool_)
    others[_known(token_ids, scores)] = False
    _forbid_cells(scores, np.flatnonzero(others), yields=yields)


def _forbid(scores: Floats, token_ids: Sequence[int], *, yields: bool) -> None:
    _forbid_cells(scores, _known(token_ids, scores), yields=yields)


def _forbid_cells(scores: Floats, cells: Ints, *, yields: bool) -> None:
    """Forbid these, unless the mask yields: where it would leave the row without any token."""
    before = scores[cells]
    scores[cells] = FORBIDDEN
    if yields and not scores.max(initial=FORBIDDEN) > FORBIDDEN:
        scores[cells] = before


def _known(token_ids: Sequence[int], scores: Floats) -> Ints:
    """Return those that are in the vocabulary."""
    ids = np.asarray(token_ids, dtype=np.int64)
    known: Ints = ids[(ids >= 0) & (ids < len(scores))]
    return known
