"""When a call is made again, and after how long. Pure: the clients wait."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dormouse_api.client.errors import ClientError, NotAvailable, Overloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long. Seconds throughout."""

    max_attempts: int = 4  # calls in all, the first included; 1 = never again
    first_delay_s: float = 0.5  # where a full server gives no time; doubled with each attempt
    max_delay_s: float = 30.0  # a longer time, also one that the server gives, is not waited for

    def __post_init__(self) -> None:
        """Raise ValueError naming the field that cannot be."""
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; the least is 1")
        if not 0 < self.first_delay_s <= self.max_delay_s:
            raise ValueError(f"first_delay_s is {self.first_delay_s}; it is above 0 and at most max_delay_s")

    @classmethod
    def never(cls) -> RetryPolicy:
        """Return the policy that makes every call once."""
        return cls(max_attempts=1)

    def delay_s(self, error: ClientError, *, attempt: int, left_s: float | None, rng: random.Random) -> float | None:
        """Return after how many seconds to call again, None for not at all.

        `attempt` counts the calls made, from 1; `left_s` is what remains of the time limit, None for no limit. At least
        what the server asks for is waited, and up to a tenth more, so that many clients do not come at once.
        """
        if attempt >= self.max_attempts or not isinstance(error, (NotAvailable, Overloaded)):
            return None
        asked_s = error.retry_after_s
        least_s = self.first_delay_s * 2 ** (attempt - 1) if asked_s is None else asked_s
        delay_s = least_s * (1.0 + 0.1 * rng.random())
        if least_s > self.max_delay_s or (left_s is not None and delay_s >= left_s):
            return None
        return delay_s
