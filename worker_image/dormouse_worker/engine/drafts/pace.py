"""How many tokens to propose: as many as are worth their rows. Pure but for the averages that it keeps.

A pass over N sequences takes T. What rows of drafts add to it is told in tokens, of T / N each. A draft's token i is
taken if it and all before it are right, p ** i. So a draft is as long as the sum of these exceeds its cost most.

Beside others a row costs its share, whoever else proposes. Alone the first row costs most: kernels for one row are
other ones, and a few rows more are almost free. So costs of one sequence are a table.
"""

from __future__ import annotations

from math import floor, log
from typing import Protocol

MARGIN = 1.5  # a row must be worth so many times its price: prices and chances are estimates
MARGIN_ALONE = 1.2  # of a table, which is better known
WEIGHT = 0.1  # of the newest observation in an average
PROBE_EVERY = 32  # chances let go before one token is tried, where nothing longer is worth it
TRIAL_SHARE = 0.01  # of the tokens that come without them, what trials may cost
FIRST_REST, LONGEST_REST = 4, 64  # passes without drafts where none is worth its row, each time twice as many
TRIAL_PART = 4  # then one in so many sequences gets a row, to learn whether that is still so
_LEAST, _MOST = 0.02, 0.98  # no estimate of a chance is a certainty
_FIRST_ROW = 0.09  # of a pass over one row: decision 16's table
_COST_STEP, _PASS_STEP = 1.1, 1.02  # of an estimated median to the next; few drafts magnify what a pass is off
_CHEAPEST, _DEAREST = 0.005, 2.0  # of a row, in tokens


class Costs(Protocol):
    """What drafts of one sequence cost."""

    @property
    def first(self) -> float:
        """Return what the first token costs."""

    def best_length(self, chance: float, most: int) -> int:
        """Return how many tokens are worth most, each of which is right with that chance; 0 = none is worth its row."""


class EqualRows:
    """Implements `Costs`: every row costs the same, in tokens."""

    def __init__(self, price: float) -> None:
        self._threshold = price * MARGIN
        self._log = log(max(self._threshold, 1e-6))

    def __repr__(self) -> str:
        return f"EqualRows({self.first:.3f})"

    @property
    def first(self) -> float:
        """See `Costs`."""
        return self._threshold / MARGIN

    def best_length(self, chance: float, most: int) -> int:
        """See `Costs`: the last row is worth its price."""
        if self._threshold >= 1:
            return 0
        return min(most, floor(self._log / log(chance)))

    def dearer(self, price: float) -> EqualRows:
        """Return these costs and so much for each token."""
        return EqualRows(self.first + price)


class Trial:
    """Implements `Costs`: a row each, whatever it costs, to learn what it does."""

    first = 0.0

    def best_length(self, chance: float, most: int) -> int:
        """See `Costs`."""
        del chance
        return min(most, 1)


class RowsAlone:
    """Implements `Costs` of a sequence alone, as measured by their number; more rows never cost less."""

    def __init__(self, costs: list[float], each: float = 0.0) -> None:
        """`costs` by the number of rows, from 0; `each` is the price of what a row scores."""
        self._costs = costs
        self._each = each

    def __repr__(self) -> str:
        return f"RowsAlone({', '.join(f'{cost:.2f}' for cost in self._costs)})"

    @property
    def first(self) -> float:
        """See `Costs`."""
        return self._costs[1] + self._each

    def best_length(self, chance: float, most: int) -> int:
        """See `Costs`."""
        best, length, expected, likelihood = 0.0, 0, 0.0, 1.0
        for count in range(1, min(most, len(self._costs) - 1) + 1):
            likelihood *= chance
            expected += likelihood
            worth = expected - MARGIN_ALONE * (self._costs[count] + self._each * count)
            if worth > best:
                best, length = worth, count
        return length

    def dearer(self, price: float) -> RowsAlone:
        """Return these costs and so much for each token; of now, without what is observed later."""
        return RowsAlone(self._costs, price)

    def observe(self, count: int, cost: float) -> None:
        """So many rows were seen to cost that."""
        costs = self._costs
        count = min(count, len(costs) - 1)
        seen = min(count * _DEAREST, max(_CHEAPEST, step(costs[count], cost, _COST_STEP)))
        self._costs = [
            seen if place == count else min(known, seen) if place < count else max(known, seen)
            for place, known in enumerate(costs)
        ]


class Acceptance:
    """The chance that a proposed token is taken, of one source of drafts."""

    def __init__(self, prior: float) -> None:
        self.chance = prior
        self._num_let_go = 0

    def __repr__(self) -> str:
        return f"Acceptance({self.chance:.2f})"

    def choose_length(self, costs: Costs, most: int) -> int:
        """Return how many tokens to propose, `most` at most, where they cost that; counts those let go."""
        length = costs.best_length(self.chance, most)
        if length > 0:
            return length
        self._num_let_go += 1
        if self._num_let_go < max(PROBE_EVERY, costs.first / TRIAL_SHARE):
            return 0
        self._num_let_go = 0
        return min(most, 1)

    def note(self, num_proposed: int, num_taken: int) -> None:
        """So many of the proposed tokens were taken: each a success, and the first that was not a failure."""
        doubt = (1 - self.chance) * (1 - WEIGHT) ** num_taken
        self.chance = min(_MOST, 1 - doubt)
        if num_taken < num_proposed:
            self.chance = max(_LEAST, (1 - WEIGHT) * self.chance)


class RowCosts:
    """What rows more cost beside N sequences that decode: measured, and before that as it is known.

    Estimates are medians, which one pass moves by a tenth at most: a machine that was busy elsewhere for a while must
    not make rows look dear for good.
    """

    def __init__(self, most: int) -> None:
        """`most` = tokens that are proposed to one sequence."""
        self._plain_s: dict[int, float] = {}  # of passes without drafts, by the magnitude of N
        self._prices: dict[int, float] = {}
        self._equal: dict[int, EqualRows] = {}
        self._alone = RowsAlone([_FIRST_ROW * count for count in range(most + 1)])
        self._most = most
        self._rests: dict[int, Rest] = {}

    def __repr__(self) -> str:
        return f"RowCosts({self._alone}, {self._prices})"

    def of(self, num_seqs: int) -> EqualRows | RowsAlone:
        """Return the costs beside so many sequences."""
        if num_seqs == 1:
            return self._alone
        return self._equal.get(num_seqs.bit_length()) or EqualRows(_prior(num_seqs))

    def turn(self, num_seqs: int) -> Costs | None:
        """Return the costs of drafts in the next pass, over so many sequences; None = none is worth its row.

        Then nobody is asked for any, which takes a while, too; and now and then some rows are tried.
        """
        costs, magnitude = self.of(num_seqs), num_seqs.bit_length()
        if costs.best_length(_MOST, self._most):
            self._rests.pop(magnitude, None)
            return costs
        return Trial() if self._rests.setdefault(magnitude, Rest()).is_over() else None

    def plain_s(self, num_seqs: int) -> float:
        """Return how long a pass over so many sequences takes without drafts; 0 = there was none yet."""
        return self._plain_s.get(num_seqs.bit_length(), 0.0)

    def observe(self, num_seqs: int, num_rows: int, seconds: float) -> None:
        """A pass in which all decode took so long, over so many rows; those beyond one each are drafts'."""
        magnitude, num_drafts = num_seqs.bit_length(), num_rows - num_seqs
        plain_s = self._plain_s.get(magnitude)
        if num_drafts == 0:
            self._plain_s[magnitude] = seconds if plain_s is None else step(plain_s, seconds, _PASS_STEP)
        elif plain_s:
            self._learn(num_seqs, num_drafts, (seconds / plain_s - 1) * num_seqs)

    def _learn(self, num_seqs: int, num_drafts: int, cost: float) -> None:
        if num_seqs == 1:
            self._alone.observe(num_drafts, cost)
            return
        magnitude = num_seqs.bit_length()
        price = step(self._prices.get(magnitude) or _prior(num_seqs), cost / num_drafts, _COST_STEP)
        self._prices[magnitude] = price = min(_DEAREST, max(_CHEAPEST, price))
        self._equal[magnitude] = EqualRows(price)


class Rest:
    """How long nobody drafts where it does not pay."""

    def __init__(self) -> None:
        self._length = FIRST_REST
        self._num_passes = 0  # of it

    def __repr__(self) -> str:
        return f"Rest({self._num_passes}/{self._length} passes)"

    def is_over(self) -> bool:
        """A pass begins: return whether it is the one behind the rest; then a longer one begins."""
        self._num_passes += 1
        if self._num_passes <= self._length:
            return False
        self._num_passes, self._length = 0, min(LONGEST_REST, 2 * self._length)
        return True


def step(estimate: float, seen: float, factor: float) -> float:
    """Return a median's next estimate: it follows what was seen, by a factor at most."""
    return min(estimate * factor, max(estimate / factor, seen))


def _prior(num_seqs: int) -> float:
    """Return the price where a pass takes 1 + 0.09 for each row beyond the first."""
    return _FIRST_ROW * num_seqs / (1 + _FIRST_ROW * (num_seqs - 1))
