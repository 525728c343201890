"""What may come next in one sequence, by the texts that it may go on from. Only ever follows the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dormouse_worker.engine.batch import Drafts
from dormouse_worker.engine.drafts.earlier import RUN_LENGTHS as LONG_RUN_LENGTHS
from dormouse_worker.engine.drafts.earlier import Place, Recall
from dormouse_worker.engine.drafts.pace import Acceptance, Costs
from dormouse_worker.engine.drafts.text import Follower, IndexedText, SelfFollower

_PRIOR_OF_EARLIER, _PRIOR_OF_OWN, _PRIOR_OF_PREDICTION, _PRIOR_OF_GRAMMAR = 0.4, 0.4, 0.8, 0.95
TAIL_LENGTH = max(LONG_RUN_LENGTHS)  # tokens by which a place in a text is known


class Proposer(Protocol):
    """Who may know how a sequence goes on."""

    def propose(self, sequence: list[int], count: int) -> list[int]:
        """Return at most so many tokens that may come behind a sequence; [] = nothing is known.

        It is always the same one, and only grows. What there is to look at of a long one may be done in several calls.
        """


class Told:
    """Implements `Proposer`: what a grammar allows alone, or a model beside expects, as told with the last token."""

    def __init__(self) -> None:
        self.token_ids: Sequence[int] = ()

    def __repr__(self) -> str:
        return f"Told({len(self.token_ids)} tokens)"

    def propose(self, sequence: list[int], count: int) -> list[int]:
        """See `Proposer`."""
        del sequence
        return list(self.token_ids[:count])


@dataclass(frozen=True, slots=True)
class Source:
    """One place from which a sequence's drafts come."""

    proposer: Proposer
    acceptance: Acceptance
    is_prediction: bool = False


def _chance(source: Source) -> float:
    return source.acceptance.chance


class SequenceDrafts:
    """Owns the texts that a sequence may go on from: what its caller predicts, itself, and earlier answers.

    Who was right most often in this sequence is asked first.
    """

    def __init__(self, token_ids: Sequence[int], longest: int, model: Acceptance | None = None) -> None:
        """Begin behind these tokens, prompt and output, of `longest` that there may be.

        `model` = what is expected of a model beside, which goes before the sequence's own text; None = there is none.
        """
        self._own = IndexedText(longest)
        self._own.tokens.extend(token_ids)
        self._expected, self._told = Told(), Told()
        self.model = None if model is None else Source(self._told, model)
        own = self.model or Source(SelfFollower(self._own), Acceptance(_PRIOR_OF_OWN))
        self._sources = [Source(self._expected, Acceptance(_PRIOR_OF_GRAMMAR)), own]  # who is right most often first
        self._under_way: Source | None = None
        self.num_read = 0  # tokens that the model beside has been asked behind

    def __repr__(self) -> str:
        return f"SequenceDrafts({self._sources})"

    def predict(self, token_ids: Sequence[int], *, is_new: bool) -> None:
        """Propose these tokens, too: the output as its caller expects it, if new from its start."""
        text = IndexedText(len(token_ids))
        text.tokens.extend(token_ids)
        follower = Follower(text, 0 if is_new else None, self.num_tokens)
        self._add(Source(follower, Acceptance(_PRIOR_OF_PREDICTION), is_prediction=True))

    def recall(self, place: Place) -> None:
        """Propose what earlier answers said, too."""
        self._add(Source(Recall(place), Acceptance(_PRIOR_OF_EARLIER)))

    @property
    def has_better(self) -> bool:
        """Return whether somebody proposes now who is right more often than the model beside."""
        return self._under_way is not None and self.model is not None and _chance(self._under_way) > _chance(self.model)

    def append(self, token_ids: list[int], *, expected: Sequence[int] = (), told: Sequence[int] = ()) -> None:
        """The output has grown by these tokens.

        Behind them a grammar allows nothing but `expected`, and a model beside expects `told`, if anything.
        """
        self._own.tokens += token_ids
        self._expected.token_ids, self._told.token_ids = expected, told

    @property
    def num_tokens(self) -> int:
        """Return how many tokens of the sequence it has seen."""
        return len(self._own.tokens)

    def propose(self, costs: Costs, most: int) -> Drafts:
        """Return what may come next, at most so many tokens; () = nothing is known, or worth what its rows cost."""
        sequence, self._under_way = self._own.tokens, None
        for source in self._sources:
            if found := source.proposer.propose(sequence, most):
                self._under_way = source
                return tuple(found[: source.acceptance.choose_length(costs, len(found))])
        return ()

    def settle(self, num_proposed: int, num_taken: int) -> Source:
        """So many of what was proposed last were taken; return who proposed them."""
        source = self._under_way
        assert source is not None, "something was proposed"
        source.acceptance.note(num_proposed, num_taken)
        if num_taken < num_proposed or source is not self._sources[0]:
            self._sources.sort(key=_chance, reverse=True)
        return source

    def _add(self, source: Source) -> None:
        self._sources.append(source)
        self._sources.sort(key=_chance, reverse=True)
