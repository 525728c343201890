"""Who is in a batch in flight, and who goes into the next one: what the scheduler asks, and who answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dormouse_worker.engine.batch import Batch
from dormouse_worker.engine.forward_pass import Limits
from dormouse_worker.engine.look_ahead import LookAhead
from dormouse_worker.engine.micro_batches import MicroBatches
from dormouse_worker.engine.request import Request


class InFlight(Protocol):
    """The batches that went to the ranks and have not come back."""

    def __contains__(self, request_id: str) -> bool:
        """Return whether a batch with this request is in flight."""

    def share(self, num_requests: int) -> int:
        """Return how many of so many requests, those in flight included, the next batch takes at most."""

    def choose(self, running: Sequence[Request]) -> list[Request]:
        """Return who of the running goes into the next batch, in line order. Changes nothing."""

    def depart(self, batch: Batch) -> None:
        """A batch goes to the ranks."""

    def arrive(self, batch: Batch) -> None:
        """Its output is here, or never comes. Batches arrive in the order in which they departed."""


def make_in_flight(limits: Limits) -> InFlight:
    """Return what keeps count within these limits, with nothing in flight."""
    return LookAhead(limits.max_model_len) if limits.looks_ahead else MicroBatches(limits.max_batches_under_way)
