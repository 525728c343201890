"""How a canary does beside the deployment that stands, by the requests that this gateway gave to both. Pure.

The last requests of each count, however long ago they were: so a verdict needs the same evidence at any rate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

import grpc

from dormouse_gateway.model import Canary

LAST = 200  # requests of each
LEAST_ERRORS = 3  # fewer may be chance
LEAST_FIRSTS = 20  # first tokens of each, before they are compared
LEAST_LONGER_S = 0.05  # by less nobody is disturbed, whatever the ratio

# What a deployment does wrong. What callers do wrong, and calls that they leave, say nothing of either.
ERRORS = frozenset(
    {
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)


@dataclass(slots=True)
class Side:
    """The last requests of one of the two."""

    errors: deque[bool] = field(default_factory=lambda: deque(maxlen=LAST))
    firsts_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))  # to the first token, unless it was held

    @property
    def num_errors(self) -> int:
        """Return how many of them ended with an error."""
        return sum(self.errors)

    @property
    def error_percent(self) -> float:
        """Return their share, 0 where there were none."""
        return 100 * self.num_errors / len(self.errors) if self.errors else 0.0

    def note(self, code: grpc.StatusCode, first_s: float | None) -> None:
        """Take how a request ended, and when its first token came; None if none came, or had to wait for a worker."""
        if code is grpc.StatusCode.OK or code in ERRORS:
            self.errors.append(code in ERRORS)
        if first_s is not None:
            self.firsts_s.append(first_s)


@dataclass(slots=True)
class Trial:
    """A canary beside the deployment whose requests it shares."""

    canary: Side = field(default_factory=Side)
    standing: Side = field(default_factory=Side)

    def fault(self, limits: Canary) -> str:
        """Return why the canary is to have no more requests, in words; "" if it may go on."""
        return self._errors(limits) or self._slowness(limits)

    def _errors(self, limits: Canary) -> str:
        most = self.standing.error_percent + limits.max_error_percent
        if self.canary.num_errors < LEAST_ERRORS or self.canary.error_percent <= most:
            return ""
        return (
            f"{self.canary.num_errors} of its last {len(self.canary.errors)} requests failed, and "
            f"{self.standing.num_errors} of {len(self.standing.errors)} of {limits.of}; "
            f"maxErrorPercent is {limits.max_error_percent}"
        )

    def _slowness(self, limits: Canary) -> str:
        if not limits.max_ttft_percent or min(len(self.canary.firsts_s), len(self.standing.firsts_s)) < LEAST_FIRSTS:
            return ""
        ours_s, theirs_s = median(self.canary.firsts_s), median(self.standing.firsts_s)
        if ours_s - theirs_s < LEAST_LONGER_S or ours_s * 100 <= theirs_s * limits.max_ttft_percent:
            return ""
        return (
            f"its first tokens take {ours_s:.3f} s at the median, those of {limits.of} {theirs_s:.3f} s; "
            f"maxTtftPercent is {limits.max_ttft_percent}"
        )
