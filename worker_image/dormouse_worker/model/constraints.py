"""Which tokens the sequences of a pass may say: a mask for each row that a grammar binds, made while the pass computes.

And which can only follow what a sequence has said: forced tokens need no pass of their own. Where a request asks for
more than the token, a pass has to say them, and they are told as drafts for it.
A row whose grammar leaves no token is told apart, and samples as if it were free: nobody hears of that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.engine.batch import Drafts, ModelOutput
from dormouse_worker.engine.grammars import Grammars, Growth, Masks, Said
from dormouse_worker.model.batch_rows import BatchRows, RankSequence
from dormouse_worker.model.sampling.logit_rows import LogitRows

UNBOUND = "the worker that samples binds no grammars"

MAX_FORCED = 256  # tokens at once, for one sequence

Stuck = dict[str, str]  # request id → why it has no token


def begin_masks(grammars: Grammars | None, wanted: LogitRows) -> Callable[[], Stuck]:
    """Begin with the masks of these rows, whose tokens are all known; return who puts them into their sequences."""
    bound = wanted.batch_rows.bound
    if not bound:
        return dict
    if grammars is None:
        return lambda: dict.fromkeys((sequence.request_id for sequence in bound), UNBOUND)
    drafts = {} if wanted.scored is None else wanted.scored.drafts_by_id
    grown = [_grown(grammars, sequence, drafts.get(sequence.request_id, ())) for sequence in bound]
    wait_for_masks = grammars.masks(grown)
    return lambda: _put(bound, wait_for_masks())


def add_forced(grammars: Grammars, batch_rows: BatchRows, output: ModelOutput, *, expects: bool) -> ModelOutput:
    """Add to what was sampled for these rows what their grammars force behind it; the matchers have seen it then.

    It is what would be sampled one by one: where just one token may follow, the mask allows no other. Requests that
    ask what the model thought of each token get them one by one, or, where somebody `expects` drafts, as such.
    """
    speechless = output.stuck.keys() | output.not_finite
    telling = [
        sequence
        for sequence in batch_rows.bound
        if (sequence.takes_forced or expects) and sequence.request_id not in speechless
    ]
    runs = _runs_of(telling, output)
    said = [_say(sequence, output, run) for sequence, run in zip(telling, runs, strict=True)]
    places = [run[-1] for each, run in zip(said, runs, strict=True) if each.most > 0]
    said = [each for each in said if each.most > 0]
    if not said:
        return output
    sampled = list(output.sampled)
    for each, place, forced in zip(said, places, grammars.force(said), strict=True):
        if forced:
            field = "forced" if each.takes_forced else "expected"
            sampled[place] = msgspec.structs.replace(sampled[place], **{field: forced})
    return msgspec.structs.replace(output, sampled=sampled)


def _runs_of(sequences: Sequence[RankSequence], output: ModelOutput) -> list[list[int]]:
    """Return the places of each sequence's tokens among the sampled ones: several where drafts were taken."""
    runs: dict[str, list[int]] = {sequence.request_id: [] for sequence in sequences}
    for place, token in enumerate(output.sampled):
        if (run := runs.get(token.request_id)) is not None:
            run.append(place)
    return list(runs.values())


def _say(sequence: RankSequence, output: ModelOutput, run: Sequence[int]) -> Said:
    assert sequence.matcher is not None, "its mask was made"
    token_ids = [output.sampled[place].token_id for place in run]
    most = min(MAX_FORCED, sequence.num_left - len(run))
    return Said(sequence.matcher, token_ids, most, sequence.takes_forced)


def _grown(grammars: Grammars, sequence: RankSequence, drafts: Drafts) -> Growth:
    if sequence.matcher is None:
        assert sequence.sampling.grammar is not None, "else it is not bound"
        sequence.matcher = grammars.matcher(sequence.sampling.grammar)
    return Growth(sequence.matcher, sequence.output_token_ids[sequence.matcher.num_tokens :].tolist(), drafts)


def _put(bound: Sequence[RankSequence], masks: Sequence[Masks]) -> Stuck:
    stuck = {}
    for sequence, found in zip(bound, masks, strict=True):
        if isinstance(found, GrammarRefused):
            sequence.masks, stuck[sequence.request_id] = (), str(found)
        else:
            sequence.masks = [np.frombuffer(mask, dtype=np.uint8) for mask in found]
    return stuck
