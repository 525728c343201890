"""Who of those that wait runs next, and whether there is room: a place, rows, tokens, blocks, a slot of its adapter."""

from __future__ import annotations

from collections.abc import Callable

from dormouse_worker.engine import line
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.forward_pass import Pass
from dormouse_worker.engine.placement import MUST_WAIT, Placement
from dormouse_worker.engine.queues import Queues
from dormouse_worker.engine.request import Request


class Admission:
    """Lets waiting requests run, one at a time. The head is never overtaken, but for what `line.head` says.

    Nor does anybody wait for an image that is encoded between passes, but who needs it.
    """

    def __init__(
        self,
        queues: Queues,
        placement: Placement,
        adapters: AdapterSlots,
        *,
        max_num_seqs: int,
        clock: Callable[[], float],
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._adapters = adapters
        self._max_num_seqs = max_num_seqs
        self._clock = clock

    def __repr__(self) -> str:
        return f"Admission({self._queues!r}, {self._max_num_seqs} places)"

    def admit_next(self, current: Pass) -> Request | None:
        """Return a request that runs from now on, with its blocks; None if none may in this pass."""
        if not current.tokens_left or not current.spare_logit_rows or len(self._queues.running) == self._max_num_seqs:
            return None
        waiting_for_images = current.images.waiting
        while (request := line.head(self._queues.waiting, self._adapters, waiting_for_images)) is not None:
            if request.shortage is not None and not self._placement.tables.has_eased(request.shortage):
                return None
            current.spare_logit_rows -= 1
            request.shortage = self._placement.admit(request, current)
            if request.shortage is None:
                self._queues.admit(request)
                request.lora_slot = self._adapters.hold(request.adapter)
                if request.first_scheduled_s is None:
                    request.first_scheduled_s = self._clock()
                return request
            if request.shortage is not MUST_WAIT or request.request_id not in waiting_for_images:
                return None
            current.spare_logit_rows += 1
        return None
