"""Which requests are in a batch under way, and how many may go into the next one.

A pipeline of P stages has P batches under way, each over other requests, so that no stage waits for another:

    stage 0    A1 B1 A2 B2 A3 …       A and B are halves of the running requests; A2 needs the tokens of A1
    stage 1       A1 B1 A2 B2 …

With one stage there is one batch, of all that run.
"""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.engine.batch import Batch
from dormouse_worker.engine.request import Request


class MicroBatches:
    """Implements `InFlight`: a request is in one batch at most."""

    def __init__(self, most: int) -> None:
        """`most` = how many batches may be under way."""
        assert most > 0
        self._most = most
        self._under_way: set[str] = set()
        self._num_batches = 0

    def __repr__(self) -> str:
        return f"MicroBatches({len(self._under_way)} requests under way, {self._num_batches}/{self._most} batches)"

    def __contains__(self, request_id: str) -> bool:
        """See `InFlight`."""
        return request_id in self._under_way

    def share(self, num_requests: int) -> int:
        """See `InFlight`.

        An even part of all, and no more than leaves some for the batches that may follow at once.
        """
        num_left, num_batches_left = num_requests - len(self._under_way), max(1, self._most - self._num_batches)
        return min(-(-num_requests // self._most), -(-num_left // num_batches_left))

    def choose(self, running: Sequence[Request]) -> list[Request]:
        """See `InFlight`: the first of those that are not in flight."""
        share = self.share(len(running))
        if not self._under_way:
            return list(running[:share])
        return [request for request in running if request.request_id not in self._under_way][:share]

    def depart(self, batch: Batch) -> None:
        """See `InFlight`."""
        self._num_batches += 1
        self._under_way.update(batch.request_ids)

    def arrive(self, batch: Batch) -> None:
        """See `InFlight`."""
        self._num_batches -= 1
        self._under_way.difference_update(batch.request_ids)
