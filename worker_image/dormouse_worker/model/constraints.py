"""Which tokens the sequences of a pass may say: a mask for each row that a grammar binds, made while the pass computes.

And which can only follow what a sequence has said: forced tokens need no pass of their own.
A row whose grammar leaves no token is told apart, and samples as if it were free: nobody hears of that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.engine.batch import ModelOutput
from dormouse_worker.engine.grammars import Grammars, Mask, Matcher
from dormouse_worker.model.batch_rows import BatchRows, RankSequence

UNBOUND = "the worker that samples binds no grammars"

MAX_FORCED = 256  # tokens at once, for one sequence

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


def add_forced(grammars: Grammars, batch_rows: BatchRows, output: ModelOutput) -> ModelOutput:
    """Add to what was sampled for these rows what their grammars force behind it; the matchers have seen it then.

    It is what would be sampled one by one: where just one token may follow, the mask allows no other. Requests that
    ask what the model thought of each token get them one by one.
    """
    speechless = output.stuck.keys() | output.not_finite
    forcing = [
        sequence
        for sequence in batch_rows.bound
        if sequence.takes_forced and sequence.num_left > 1 and sequence.request_id not in speechless
    ]
    if not forcing:
        return output
    sampled = list(output.sampled)
    place_of = {token.request_id: place for place, token in enumerate(sampled)}  # others may have drafts before it
    places = [place_of[sequence.request_id] for sequence in forcing]
    said = [_said(sequence, sampled[place].token_id) for sequence, place in zip(forcing, places, strict=True)]
    for place, forced in zip(places, grammars.force(said), strict=True):
        if forced:
            sampled[place] = msgspec.structs.replace(sampled[place], forced=forced)
    return msgspec.structs.replace(output, sampled=sampled)


def _said(sequence: RankSequence, token_id: int) -> tuple[Matcher, int, int]:
    assert sequence.matcher is not None, "its mask was made"
    return sequence.matcher, token_id, min(MAX_FORCED, sequence.num_left - 1)


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
