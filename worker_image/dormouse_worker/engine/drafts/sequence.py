"""What may come next in one sequence, by the texts that it may go on from. Only ever follows the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dormouse_worker.engine.batch import Drafts
from dormouse_worker.engine.drafts.pace import Acceptance
from dormouse_worker.engine.drafts.text import RUN_LENGTHS, Follower, IndexedText, SelfFollower

_PRIOR_OF_OWN, _PRIOR_OF_PREDICTION = 0.5, 0.8


@dataclass(frozen=True, slots=True)
class Source:
    """One place from which a sequence's drafts come."""

    follower: Follower
    acceptance: Acceptance
    is_prediction: bool = False


class SequenceDrafts:
    """Owns the texts that a sequence may go on from: what its caller predicts, and itself."""

    def __init__(self, token_ids: Sequence[int], longest: int) -> None:
        """Begin behind these tokens, prompt and output, of `longest` that there may be."""
        self._own = IndexedText(longest)
        self._own.tokens.extend(token_ids)
        self._sources = [Source(SelfFollower(self._own), Acceptance(_PRIOR_OF_OWN))]
        self._under_way: Source | None = None

    def __repr__(self) -> str:
        return f"SequenceDrafts({self._sources})"

    def predict(self, token_ids: Sequence[int], *, is_new: bool) -> None:
        """Propose these tokens before any others: the output as its caller expects it, if new from its start."""
        text = IndexedText(len(token_ids))
        text.tokens.extend(token_ids)
        follower = Follower(text, 0 if is_new else None)
        self._sources.insert(0, Source(follower, Acceptance(_PRIOR_OF_PREDICTION), is_prediction=True))

    def append(self, token_ids: Iterable[int]) -> None:
        """The output has grown by these tokens."""
        for token_id in token_ids:
            for source in self._sources:
                source.follower.note(token_id)
            self._own.tokens.append(token_id)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens of the sequence it has seen."""
        return len(self._own.tokens)

    def propose(self, price: float, most: int) -> Drafts:
        """Return what may come next, at most so many tokens; () = nothing is known, or worth `price` a row."""
        tail = self._own.tokens[-RUN_LENGTHS[0] :]
        for source in self._sources:
            source.follower.catch_up()
            found = source.follower.propose(tail, most)
            if found:
                self._under_way = source
                return tuple(found[: source.acceptance.choose_length(price, len(found))])
        return ()

    def settle(self, num_proposed: int, num_taken: int) -> bool:
        """So many of what was proposed last were taken; return whether the caller had predicted them."""
        source = self._under_way
        assert source is not None, "something was proposed"
        source.acceptance.note(num_proposed, num_taken)
        return source.is_prediction
