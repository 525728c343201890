"""How much of its limits a key has used, and whether it may send one more. Pure.

The operator, which counts for all gateways, and a gateway that counts alone decide by this.

A minute is any 60 seconds: what was used is kept by the second, and a second counts until the whole of it is older than
a minute. So no minute holds more than the limit. A day is UTC's, from midnight to midnight.

Tokens are reserved when a request comes, as many as this key's requests took on the average, and settled when it has
ended: what was too much goes back to the second in which it was reserved, what is missing counts when it is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MINUTE_S = 60
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Quota:
    """What a key may use. None = any number."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None

    @property
    def is_open(self) -> bool:
        """Return whether nothing is limited."""
        return self == _OPEN

    def shared_by(self, num_gateways: int) -> Quota:
        """Return the part of one of so many gateways, each of which counts alone; of a small limit at least one."""
        limits = self.requests_per_minute, self.requests_per_day, self.tokens_per_minute, self.tokens_per_day
        return Quota(*(limit and max(1, limit // num_gateways) for limit in limits))


_OPEN = Quota()


class Use(NamedTuple):
    """Requests and tokens. Tokens that go back are negative."""

    requests: int = 0
    tokens: int = 0

    def plus(self, other: Use) -> Use:
        """Return both together."""
        return Use(self.requests + other.requests, self.tokens + other.tokens)


class DayUse(NamedTuple):
    """What was used on one day of UTC, by its number since 1970."""

    day: int
    use: Use


NEVER = DayUse(0, Use())


@dataclass(slots=True)
class Ledger:
    """What one key used: by the second, as far as that is in any minute that still counts, and today."""

    seconds: dict[int, Use] = field(default_factory=dict)  # by whole seconds of a clock that does not jump
    today: DayUse = NEVER

    def add(self, use: Use, *, at_s: float, day: int) -> None:
        """Count a use. What goes back of another day is forgotten."""
        second = math.floor(at_s)
        self.seconds[second] = self.seconds.get(second, Use()).plus(use)
        before = self.today.use if self.today.day == day else Use()
        after = before.plus(use)
        self.today = DayUse(day, Use(after.requests, max(0, after.tokens)))

    def forget(self, now_s: float) -> None:
        """Forget what no minute holds any more."""
        oldest = math.floor(now_s) - MINUTE_S
        for second in [each for each in self.seconds if each < oldest]:
            del self.seconds[second]

    def is_idle(self, now_s: float, day: int) -> bool:
        """Return whether there is nothing to remember."""
        self.forget(now_s)
        return not self.seconds and self.today.day != day


class Limit(NamedTuple):
    """Where a key stands with one limit."""

    limit: int
    remaining: int
    reset_s: float  # until nothing of it is used


class Verdict(NamedTuple):
    """Whether a request may go, and where its key stands then."""

    is_granted: bool
    retry_after_s: float = 0.0
    words: str = ""  # the limit that is reached, as a sentence ends
    is_final: bool = False  # until then nothing can change that: nobody gives requests back
    requests: Limit | None = None  # of a minute, or of a day where that is what is limited
    tokens: Limit | None = None


class _Meter(NamedTuple):
    """One limit, and how what was used leaves it: pairs of seconds from now and amounts, the soonest first."""

    limit: int
    what: str
    leaving: tuple[tuple[float, int], ...]

    @property
    def used(self) -> int:
        return sum(amount for _, amount in self.leaving)

    def state(self, more: int) -> Limit:
        reset_s = self.leaving[-1][0] if self.leaving else 0.0
        return Limit(self.limit, max(0, self.limit - self.used - more), reset_s)

    def wait_s(self, needed: int) -> float:
        """Return after how many seconds there is room for so much; 0 if there is now."""
        excess = self.used + min(max(1, needed), self.limit) - self.limit
        for seconds, amount in self.leaving:
            if excess <= 0:
                return 0.0
            excess -= amount
            if excess <= 0:
                return seconds
        return 0.0


class Clocks(NamedTuple):
    """One moment on both clocks."""

    now_s: float  # of the clock of the ledgers
    wall_s: float  # since 1970, UTC

    @property
    def day(self) -> int:
        """Return the day's number."""
        return int(self.wall_s // DAY_S)


def judge(quota: Quota, ledgers: Iterable[Ledger], today: Use, asked: Use, clocks: Clocks) -> Verdict:
    """Say whether a request may go, of a key that these ledgers and this day's use are of. Changes nothing.

    Several requests that come as one may go if one may. What takes more tokens than there can be may go once there are
    all.
    """
    minute = _joined(ledgers)
    requests, tokens = _meters(quota, minute, today, clocks)
    waits = [(each.wait_s(1), each, True) for each in requests] + [
        (each.wait_s(asked.tokens), each, False) for each in tokens
    ]
    longest_s, tightest, is_final = max(waits, key=lambda wait: wait[0], default=(0.0, None, False))
    is_granted = longest_s <= 0
    more = asked if is_granted else Use()
    return Verdict(
        is_granted,
        longest_s,
        f"{tightest.limit} {tightest.what}" if tightest and not is_granted else "",
        is_final and not is_granted,
        _tightest(each.state(more.requests) for each in requests),
        _tightest(each.state(more.tokens) for each in tokens),
    )


def _joined(ledgers: Iterable[Ledger]) -> dict[int, Use]:
    joined: dict[int, Use] = {}
    for ledger in ledgers:
        for second, use in ledger.seconds.items():
            joined[second] = joined.get(second, Use()).plus(use)
    return joined


def _meters(quota: Quota, minute: Mapping[int, Use], today: Use, clocks: Clocks) -> tuple[list[_Meter], list[_Meter]]:
    """Return the limits of requests and of tokens, those that there are."""
    kept = sorted((second, use) for second, use in minute.items() if second >= math.floor(clocks.now_s) - MINUTE_S)
    leaves = [(second + 1 + MINUTE_S - clocks.now_s, use) for second, use in kept]
    midnight_s = DAY_S - clocks.wall_s % DAY_S
    requests = [(seconds, use.requests) for seconds, use in leaves]
    tokens = [(seconds, use.tokens) for seconds, use in leaves]
    return (
        [
            *_meter(quota.requests_per_minute, "requests per minute", requests),
            *_meter(quota.requests_per_day, "requests per day", [(midnight_s, today.requests)]),
        ],
        [
            *_meter(quota.tokens_per_minute, "tokens per minute", tokens),
            *_meter(quota.tokens_per_day, "tokens per day", [(midnight_s, today.tokens)]),
        ],
    )


def _meter(limit: int | None, what: str, leaving: Sequence[tuple[float, int]]) -> list[_Meter]:
    if limit is None:
        return []
    return [_Meter(limit, what, tuple((seconds, amount) for seconds, amount in leaving if amount))]


def _tightest(states: Iterable[Limit]) -> Limit | None:
    return min(states, key=lambda state: state.remaining, default=None)
