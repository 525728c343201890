"""Which layers each stage of a pipeline computes, so that the slowest stage is as fast as can be (pure).

Each stage has another batch in hand at the same time, so a group is as fast as its slowest stage:

    the model    before | layer 0 … layer n−1 | behind
    stage 0      before   layers [0, a)
    stage 1               layers [a, b)
    stage 2               layers [b, n)         behind

Costs are whole numbers: every rank computes the split by itself, and all come to the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """What the parts of a model cost beside each other, in any one unit. Raises ValueError for less than nothing."""

    layers: tuple[int, ...]
    before: int = 0  # of the first stage: the embedding
    behind: int = 0  # of the last stage: norm, head, sampler

    def __post_init__(self) -> None:
        least = min((self.before, self.behind, *self.layers))
        if least < 0:
            raise ValueError(f"a cost is {least}; none can be below 0")


class _Split(NamedTuple):
    """How the layers from some one on are split."""

    greatest: int  # cost of a stage
    squares: int  # sum of all stages' costs, squared: less is evener
    ends: tuple[int, ...]  # of each stage's layers


_NOTHING = _Split(0, 0, ())


def split_layers(costs: ModelCosts, num_stages: int) -> tuple[range, ...]:
    """Return the layers of each stage, in order, at least one for each, so that the greatest cost is the least.

    Of equal splits an evener one is taken, of equally even ones that with more layers in front. Raises ValueError, with
    the numbers, for less than one stage or more stages than layers.
    """
    num_layers = len(costs.layers)
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_stages} stages; {num_layers} layers are enough for 1 to {num_layers}")
    sums = [-costs.before, *accumulate(costs.layers)]  # the cost of [start, end) is the difference of two
    sums[-1] += costs.behind
    best = {start: _put_before(_NOTHING, sums, start, num_layers) for start in range(num_layers)}
    for _ in range(num_stages - 1):
        best = _with_one_more(best, sums)
    ends = best[0].ends
    return tuple(map(range, (0, *ends), ends))


def _with_one_more(best: Mapping[int, _Split], sums: Sequence[int]) -> dict[int, _Split]:
    """Return the best split from each layer on with one stage more than those given."""
    last = max(best)
    return {
        start: min(
            (_put_before(best[end], sums, start, end) for end in range(last, start, -1)),
            key=lambda split: (split.greatest, split.squares),
        )
        for start in range(last)
    }


def _put_before(rest: _Split, sums: Sequence[int], start: int, end: int) -> _Split:
    """Return the split that has a stage of layers [start, end) before the rest."""
    cost = sums[end] - sums[start]
    return _Split(max(cost, rest.greatest), cost * cost + rest.squares, (end, *rest.ends))
