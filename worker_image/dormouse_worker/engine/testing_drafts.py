"""A fake for tests of the engine: a model beside the fake one, which is right about it, or wrong now and then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dormouse_worker.engine.batch import Batch, Proposals
from dormouse_worker.engine.testing import VOCAB_SIZE, next_token, visible_tokens


@dataclass
class FakeDraftModel:
    """Proposes what the fake model says next, with each `wrong_every`-th token another; 0 = none is."""

    wrong_every: int = 0
    is_failing: bool = False
    seconds_per_token: float = 0.0

    def propose(
        self, batch: Batch, known: Mapping[str, Sequence[int]], windows: Sequence[int | None]
    ) -> Proposals | None:
        """Return what is wanted behind the known tokens of the batch's sequences; None = nothing is."""
        wanted = {each.request_id: each.num_wanted for each in batch.sequences if each.num_wanted}
        if not wanted:
            return None
        if self.is_failing:
            return Proposals({}, has_failed=True)
        told = {key: tuple(self._guess(known[key], count, windows)) for key, count in wanted.items()}
        seconds = self.seconds_per_token * max(wanted.values())
        return Proposals(told, seconds, self.seconds_per_token)

    def _guess(self, known: Sequence[int], count: int, windows: Sequence[int | None]) -> Iterator[int]:
        tokens = list(known)
        for _ in range(count):
            is_wrong = bool(self.wrong_every) and len(tokens) % self.wrong_every == 0
            tokens.append((next_token(*visible_tokens(tokens, windows)) + is_wrong) % VOCAB_SIZE)
            yield tokens[-1]
