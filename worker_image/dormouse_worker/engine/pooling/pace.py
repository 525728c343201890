"""How long passes may take while some calls are more urgent than others.

A pass stops for one that is more urgent only where it can, and not every network can at all. As long as calls of higher
priority keep coming, passes of the others are short, and no pass mixes both. Otherwise passes are as large as they may
be, which is fastest.
"""

from __future__ import annotations

PASS_S = 0.01  # that a pass should take beside more urgent calls
LASTS_S = 10.0  # how long a call of higher priority has passes shortened
_WEIGHT = 0.25  # of the newest pass in what a token takes


class Pace:
    """Decides how many tokens a pass has. Knows what a token takes from the passes before."""

    def __init__(self) -> None:
        self._ends_s = float("-inf")
        self._token_s = 0.0  # 0 = no pass was seen

    def __repr__(self) -> str:
        return f"Pace({self._token_s * 1e6:.1f} µs a token)"

    def urge(self, now_s: float) -> None:
        """Note that a call has come which is more urgent than others."""
        self._ends_s = now_s + LASTS_S

    def is_urged(self, now_s: float) -> bool:
        """Return whether passes are to be short."""
        return now_s < self._ends_s

    def most_tokens(self, limit: int, now_s: float) -> int:
        """Return how many tokens a pass may have, at most the limit. One text is taken however long it is."""
        if not self.is_urged(now_s) or not self._token_s:
            return limit
        return min(limit, int(PASS_S / self._token_s))

    def note(self, num_tokens: int, seconds: float) -> None:
        """Note what a pass took."""
        token_s = seconds / num_tokens
        self._token_s = token_s if not self._token_s else self._token_s + _WEIGHT * (token_s - self._token_s)
