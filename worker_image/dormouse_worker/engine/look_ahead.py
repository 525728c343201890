"""Which requests go into a batch while the device still computes the one before.

The host then schedules and prepares while the device computes, and neither waits for the other:

    device    | A1 | A2 | A3 | …        A2 goes on from the tokens of A1, which only the device knows yet
    host      A2 A1' A3 A2' …           A1' = the output of A1 has come

A sequence that ends with A1 by its token is in A2 all the same: what A2 says of it counts for nothing. One whose tokens
the host is asked about (a grammar, penalties, log-probabilities) is in one batch only, so beside others in every second
one. Where there are many of these, A2 waits for all tokens of A1: a batch without them takes nearly as long as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dormouse_worker.engine.batch import Batch
from dormouse_worker.engine.request import Request

MOST_LEFT_OUT = 0.25  # of the sequences that go on


class LookAhead:
    """Implements `InFlight`: a request may be in each batch, but for those that ask the host."""

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self._under_way: deque[set[str]] = deque()  # by batch, oldest first

    def __repr__(self) -> str:
        counts = ", ".join(str(len(request_ids)) for request_ids in self._under_way)
        return f"LookAhead([{counts}] requests under way)"

    def __contains__(self, request_id: str) -> bool:
        """See `InFlight`."""
        return any(request_id in request_ids for request_ids in self._under_way)

    def share(self, num_requests: int) -> int:
        """See `InFlight`: all."""
        return num_requests

    def choose(self, running: Sequence[Request]) -> list[Request]:
        """See `InFlight`: all that may get a token beyond what is promised; nobody if too many of them have to wait."""
        limit = self._max_model_len
        going = [request for request in running if not request.is_leaving and request.gets_more(limit)]
        ready = [request for request in going if not (request.asks_host and request.request_id in self)]
        return ready if len(going) - len(ready) <= MOST_LEFT_OUT * len(going) else []

    def depart(self, batch: Batch) -> None:
        """See `InFlight`."""
        self._under_way.append(set(batch.request_ids))

    def arrive(self, batch: Batch) -> None:
        """See `InFlight`."""
        request_ids = self._under_way.popleft()
        assert request_ids == set(batch.request_ids), "outputs come in the order of their batches"
