"""What a response that only passes by costs its key: its usage where it says one, else what can be counted of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dormouse_gateway.clients.keys import Caller
from dormouse_gateway.routing.policy import Demand

_USAGE = re.compile(rb'"(?:prompt|input|completion|output)_tokens": ?(\d{1,12})')  # of each door's own words
_EVENT = b"data:"
_KEPT_BYTES = 2048  # of the end, where usage stands


@dataclass(slots=True)
class Toll:
    """One response's tokens, charged when it is over. A body that Envoy does not show costs what was foreseen."""

    caller: Caller
    demand: Demand
    is_good: bool = False  # whether a worker began to answer
    has_body: bool = False
    _num_events: int = 0
    _end: bytes = field(default=b"", repr=False)

    @property
    def is_counted(self) -> bool:
        """Return whether somebody pays by what the body says."""
        return self.caller.admission is not None

    def pass_by(self, part: bytes) -> None:
        """Take a part of the body."""
        self.has_body = True
        if self.is_counted:
            self._num_events += part.count(_EVENT)
            self._end = (self._end + part[-_KEPT_BYTES:])[-_KEPT_BYTES:]

    def charge(self) -> None:
        """Have the key pay."""
        if self.caller.admission and self.is_good:
            self.caller.admission.add(self.tokens)

    @property
    def tokens(self) -> int:
        """Return how many tokens it took."""
        if not self.has_body:
            return self.demand.tokens
        told = [int(number) for number in _USAGE.findall(self._end)]
        return sum(told[-2:]) if len(told) > 1 else self.demand.prompt_tokens + self._num_events
