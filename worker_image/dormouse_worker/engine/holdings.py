"""What an unfinished request has: a place in line, blocks, an adapter's slot, rows of images, a name at the ranks.

Whoever admits a request or fills a pass takes these one by one. They are given back here, together.
"""

from __future__ import annotations

from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.placement import Placement
from dormouse_worker.engine.queues import Queues
from dormouse_worker.engine.rank_view import RankView
from dormouse_worker.engine.request import Request


class Holdings:
    """Takes back what requests hold: for good, or until their turn comes again."""

    def __init__(
        self, queues: Queues, placement: Placement, ranks: RankView, *, adapters: AdapterSlots, images: EncoderCache
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._ranks = ranks
        self._adapters = adapters
        self._images = images

    def __repr__(self) -> str:
        return f"Holdings({self._queues!r}, {self._placement!r})"

    def drop(self, request: Request) -> None:
        """Take everything, for good. No batch with the request may be in flight."""
        if request in self._queues.running:
            self._adapters.release(request.adapter)
        self._queues.forget(request)
        self._images.release(request.request_id, request.images)
        self._adapters.end(request.adapter)
        self._placement.free(request.request_id)
        self._ranks.release(request.request_id)

    def preempt_last(self) -> Request:
        """Take the blocks of the last running request in line and let it wait; return it."""
        request = self._queues.running[-1]
        self._placement.preempt(request)
        self._ranks.release(request.request_id)
        self._wait_again(request)
        return request

    def start_over(self, request: Request) -> None:
        """Let a running request wait, and compute it anew; one that is leaving goes."""
        if request.is_leaving:
            self.drop(request)
            return
        self._placement.tables.free(request.request_id)
        request.start_over()
        self._wait_again(request)

    def forget_ranks(self) -> None:
        """The ranks know nothing any more: introduce everything anew."""
        self._ranks.reset()
        self._adapters.reset()
        self._images.reset()

    def check_integrity(self) -> None:
        """Recount all of it; when no request is left nothing may be held. Raises RuntimeError with the numbers."""
        is_idle = not self._queues.by_id
        self._placement.check_integrity(is_idle=is_idle)
        self._adapters.check_integrity(is_idle=is_idle)
        self._images.check_integrity(self._queues.running)

    def _wait_again(self, request: Request) -> None:
        self._queues.wait_again(request)
        self._adapters.release(request.adapter)
        self._images.release(request.request_id, request.images)
