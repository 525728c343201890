"""How many tokens to propose: as many as are worth their rows. Pure but for the averages that it keeps.

A pass over N sequences takes T; a row more takes m. It is worth its time if the chance that its token is taken exceeds
m : T / N, the time of a row over the time of a token. A draft's token i is taken if it and all before it are right,
p ** i; so the longest worthwhile draft is where that falls below the price of a row.
"""

from __future__ import annotations

from math import floor, log

MARGIN = 1.5  # a row must be worth so many times its price: prices and chances are estimates
WEIGHT = 0.1  # of the newest observation in an average
PROBE_EVERY = 32  # chances let go before one token is tried, where nothing longer is worth it
PROBE_PRICE_EVERY = 256  # the same where a row costs as much as a token: only to learn whether it still does
_LEAST, _MOST = 0.02, 0.98  # no estimate is a certainty
_FIRST_ROW = 0.09  # of a pass over one row: decision 16's table
_PRICE_STEP, _PASS_STEP = 1.1, 1.02  # of an estimated median to the next; few drafts magnify what a pass is off
_CHEAPEST, _DEAREST = 0.005, 2.0  # price of a row, in tokens


class Acceptance:
    """The chance that a proposed token is taken, of one source of drafts."""

    def __init__(self, prior: float) -> None:
        self.chance = prior
        self._num_let_go = 0

    def __repr__(self) -> str:
        return f"Acceptance({self.chance:.2f})"

    def choose_length(self, price: float, most: int) -> int:
        """Return how many tokens to propose, `most` at most, where a row costs `price` tokens; counts those let go."""
        threshold = price * MARGIN
        length = min(most, floor(log(max(threshold, 1e-6)) / log(self.chance))) if threshold < 1 else 0
        if length > 0:
            return length
        self._num_let_go += 1
        return min(most, self._num_let_go % (PROBE_EVERY if threshold < 1 else PROBE_PRICE_EVERY) == 0)

    def note(self, num_proposed: int, num_taken: int) -> None:
        """So many of the proposed tokens were taken: each a success, and the first that was not a failure."""
        for _ in range(num_taken):
            self._learn(1)
        if num_taken < num_proposed:
            self._learn(0)

    def _learn(self, outcome: int) -> None:
        self.chance = min(_MOST, max(_LEAST, self.chance + WEIGHT * (outcome - self.chance)))


class RowPrice:
    """What a row more costs, in tokens, beside N sequences that decode: measured, and before that as it is known.

    Estimates are medians, which one pass moves by a tenth at most: a machine that was busy elsewhere for a while must not make
    rows look dear for good.
    """

    def __init__(self) -> None:
        self._plain_s: dict[int, float] = {}  # of passes without drafts, by the magnitude of N
        self._prices: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"RowPrice({self._prices})"

    def of(self, num_seqs: int) -> float:
        """Return the price beside so many sequences."""
        known = self._prices.get(num_seqs.bit_length())
        return _prior(num_seqs) if known is None else known

    def observe(self, num_seqs: int, num_rows: int, seconds: float) -> None:
        """A pass in which all decode took so long, over so many rows; those beyond one each are drafts'."""
        magnitude, num_drafts = num_seqs.bit_length(), num_rows - num_seqs
        plain_s = self._plain_s.get(magnitude)
        if num_drafts == 0:
            self._plain_s[magnitude] = seconds if plain_s is None else _step(plain_s, seconds, _PASS_STEP)
        elif plain_s:
            price = _step(self.of(num_seqs), (seconds / plain_s - 1) * num_seqs / num_drafts, _PRICE_STEP)
            self._prices[magnitude] = min(_DEAREST, max(_CHEAPEST, price))


def _step(estimate: float, seen: float, factor: float) -> float:
    return estimate * factor if seen > estimate else estimate / factor


def _prior(num_seqs: int) -> float:
    """Return the price where a pass takes 1 + 0.09 for each row beyond the first."""
    return _FIRST_ROW * num_seqs / (1 + _FIRST_ROW * (num_seqs - 1))
