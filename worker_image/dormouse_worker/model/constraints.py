"""Which tokens the sequences of a pass may say: a mask for each row that a grammar binds, made while the pass computes.

A row whose grammar leaves no token is told apart, and samples as if it were free: nobody hears of that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.engine.grammars import Grammars, Mask, Matcher
from dormouse_worker.model.batch_rows import BatchRows, RankSequence

UNBOUND = "the worker that samples binds no grammars"

Stuck = dict[str, str]  # request id → why it has no token


def begin_masks(grammars: Grammars | None, batch_rows: BatchRows) -> Callable[[], Stuck]:
    """Begin with the masks of these rows, whose tokens are all known; return who puts them into their sequences."""
    bound = batch_rows.bound
    if not bound:
        return dict
    if grammars is None:
        return lambda: dict.fromkeys((sequence.request_id for sequence in bound), UNBOUND)
    wait_for_masks = grammars.masks([_grown(grammars, sequence) for sequence in bound])
    return lambda: _put(bound, wait_for_masks())


def _grown(grammars: Grammars, sequence: RankSequence) -> tuple[Matcher, list[int]]:
    if sequence.matcher is None:
        assert sequence.sampling.grammar is not None, "else it is not bound"
        sequence.matcher = grammars.matcher(sequence.sampling.grammar)
    return sequence.matcher, sequence.output_token_ids[sequence.matcher.num_tokens :].tolist()


def _put(bound: Sequence[RankSequence], masks: Sequence[Mask]) -> Stuck:
    stuck = {}
    for sequence, mask in zip(bound, masks, strict=True):
        if isinstance(mask, GrammarRefused):
            sequence.allowed, stuck[sequence.request_id] = None, str(mask)
        else:
            sequence.allowed = np.frombuffer(mask, dtype=np.uint8)
    return stuck
