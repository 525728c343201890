"""Whether a worker that failed is given requests: a circuit breaker. Pure: values and a clock in, a new value out.

    CLOSED ── failures in a row, a share of failures, or one refusal ──▶ OPEN ── its pause is over ──▶ HALF_OPEN
       ▲                                                                  ▲                              │
       └──────────── the probe begins to answer ◀── lets one probe in ────┼──────────────────────────────┤
                                                                          └──── the probe fails ─────────┘

A *refusal* (nothing was said: the worker cannot or will not, or is not there) opens at once, as the request goes
elsewhere or waits; the pause is short at first, for a worker that drains says so within it, and doubles with every
opening in a row. A worker that cannot be heard either gets the long pause, until its pod is seen to fail. What a
request has brought on itself is no verdict on the worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class State(StrEnum):
    """Whether requests are let in."""

    CLOSED = "closed"  # all
    HALF_OPEN = "half_open"  # one, to see
    OPEN = "open"  # none


class Verdict(StrEnum):
    """What the end of a call says about its worker."""

    GOOD = "good"
    FAILED = "failed"
    REFUSED = "refused"
    NOTHING = "nothing"  # the request's own fault, or its client's wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a breaker opens, and for how long."""

    failures_in_row: int = 3
    window: int = 20  # calls that the share of failures is taken of
    least_calls: int = 10  # before there is a share
    failed_share: float = 0.5
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    silent_pause_s: float = 10.0  # of a worker that cannot be heard


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Breaker:
    """One worker's breaker. Begins closed."""

    rules: Rules = field(default=RULES, repr=False)
    num_in_row: int = 0  # failures
    window: int = 0  # a bit for each of the last calls, 1 = failed
    num_calls: int = 0  # in the window
    num_openings: int = 0  # in a row
    opened_s: float | None = None  # None = closed
    is_probing: bool = False  # the one request has been let in

    def state(self, now_s: float, *, is_heard: bool) -> State:
        """Return the state; `is_heard` says whether the worker tells its load."""
        if self.opened_s is None:
            return State.CLOSED
        return State.OPEN if self.left_s(now_s, is_heard=is_heard) > 0 else State.HALF_OPEN

    def left_s(self, now_s: float, *, is_heard: bool) -> float:
        """Return how long it stays open yet; 0 if it is not."""
        if self.opened_s is None:
            return 0.0
        doubled = self.rules.first_pause_s * 2.0 ** min(self.num_openings - 1, 30)
        pause_s = min(self.rules.longest_pause_s, doubled)
        pause_s = pause_s if is_heard else max(pause_s, self.rules.silent_pause_s)
        return max(0.0, self.opened_s + pause_s - now_s)

    def admits(self, now_s: float, *, is_heard: bool) -> bool:
        """Return whether one more request is let in."""
        if self.opened_s is None:
            return True
        state = self.state(now_s, is_heard=is_heard)
        return state is State.HALF_OPEN and not self.is_probing

    def probed(self) -> Breaker:
        """Return the breaker after its one request was let in; it must be half open."""
        assert self.opened_s is not None, "only a half open breaker is probed"
        return replace(self, is_probing=True)

    def trusted(self) -> Breaker:
        """Return the breaker after the probe began to answer: closed, until the next failure."""
        return Breaker(self.rules, num_in_row=self.rules.failures_in_row - 1, num_openings=self.num_openings)

    def after(self, verdict: Verdict, now_s: float, *, is_probe: bool) -> Breaker:
        """Return the breaker after a call. While it is not closed, only its probe has a say: others are older."""
        if self.opened_s is not None:
            return self._after_probe(verdict, now_s) if is_probe and self.is_probing else self
        if verdict is Verdict.GOOD:
            return self._after_good()
        if verdict is Verdict.FAILED:
            return self._after_failure(now_s)
        return self._opened(now_s) if verdict is Verdict.REFUSED else self

    def _after_probe(self, verdict: Verdict, now_s: float) -> Breaker:
        if verdict is Verdict.NOTHING:
            return replace(self, is_probing=False)
        return Breaker(self.rules) if verdict is Verdict.GOOD else self._opened(now_s)

    def _after_good(self) -> Breaker:
        window, num_calls = self._noted(failed=False)
        return Breaker(self.rules, window=window, num_calls=num_calls)

    def _after_failure(self, now_s: float) -> Breaker:
        num_in_row, (window, num_calls) = self.num_in_row + 1, self._noted(failed=True)
        has_share = num_calls >= self.rules.least_calls
        is_share_over = has_share and window.bit_count() >= self.rules.failed_share * num_calls
        if num_in_row >= self.rules.failures_in_row or is_share_over:
            return self._opened(now_s)
        return replace(self, num_in_row=num_in_row, window=window, num_calls=num_calls)

    def _noted(self, *, failed: bool) -> tuple[int, int]:
        """Return the window and the number of calls in it with one more."""
        kept = (1 << self.rules.window) - 1
        return (self.window << 1 | failed) & kept, min(self.num_calls + 1, self.rules.window)

    def _opened(self, now_s: float) -> Breaker:
        return Breaker(self.rules, num_openings=self.num_openings + 1, opened_s=now_s)
