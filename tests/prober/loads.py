"""When requests are sent, decided before the first one is: fixed or Poisson. Pure: the same seed, the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from tests.prober.cases import Ask

INTERVALS = (1, 4, 16)  # tokens per message; the first message carries one whatever it is


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests a second, of answers of so many tokens, for so long."""

    rate: float  # requests per second, above 0
    seconds: float = float("inf")
    tokens: tuple[int, int] = (4, 12)  # at least, at most
    is_fixed: bool = False  # evenly spaced; else at random (Poisson), as independent users come
    is_long: bool = False  # only cases whose answers do not end before they have so many tokens
    intervals: tuple[int, ...] = INTERVALS

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate is {self.rate}; it must be above 0")
        if not 1 <= self.tokens[0] <= self.tokens[1]:
            raise ValueError(f"tokens is {self.tokens}; the least is (1, 1), and the first is not above the second")

    def asks(self, cases: Sequence[int], rng: random.Random) -> Iterator[Ask]:
        """Yield the plan in order of time; it may have no end."""
        for due_s in takewhile(lambda s: s < self.seconds, self._times(rng)):
            tokens, case = rng.randint(*self.tokens), rng.choice(cases)
            yield Ask(due_s, case, tokens, rng.choice(self.intervals))

    def _times(self, rng: random.Random) -> Iterator[float]:
        """Yield seconds from the beginning."""
        if self.is_fixed:
            yield from (index / self.rate for index in count())
        due_s = 0.0
        while True:
            due_s += rng.expovariate(self.rate)
            yield due_s
