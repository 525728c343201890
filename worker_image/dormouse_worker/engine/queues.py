"""Every unfinished request, in one of two queues, both in line order: who waits, and who holds blocks."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from operator import attrgetter

from dormouse_worker.engine import line
from dormouse_worker.engine.request import Request

_in_line = attrgetter("order")


class Queues:
    """Owns which requests there are, and where each stands."""

    def __init__(self) -> None:
        self.by_id: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._num_arrived = 0

    def __repr__(self) -> str:
        return f"Queues(running={len(self.running)}, waiting={len(self.waiting)})"

    @property
    def request_ids(self) -> list[str]:
        """Return every request that gets further tokens, running ones first."""
        return [request.request_id for request in (*self.running, *self.waiting) if not request.is_leaving]

    @property
    def departing(self) -> list[Request]:
        """Return who of the running is to go on elsewhere."""
        return [request for request in self.running if request.remote_decode and not request.is_leaving]

    def wait_for_held(self, timeout_s: float) -> None:
        """Wait so long at most for what the first request that is held waits for, if there is one."""
        held = next((request for request in self.waiting if request.is_held), None)
        if held is not None:
            held.await_held(timeout_s)

    def with_images(self, why: Mapping[bytes, str]) -> dict[str, str]:
        """Return which requests that get further tokens have one of these images, each with what is said of it."""
        return {
            request.request_id: next(why[image.digest] for image in request.images if image.digest in why)
            for request in self.by_id.values()
            if not request.is_leaving and any(image.digest in why for image in request.images)
        }

    def add(self, request: Request) -> None:
        """Let a new request wait."""
        assert request.request_id not in self.by_id
        self._num_arrived += 1
        request.number = self._num_arrived
        self.by_id[request.request_id] = request
        insort(self.waiting, request, key=_in_line)

    def admit(self, request: Request) -> None:
        """Let a waiting request run, and count for those before it that they were overtaken."""
        line.leave(self.waiting, request)
        insort(self.running, request, key=_in_line)

    def wait_again(self, request: Request) -> None:
        """Let a running request wait in its old place in line."""
        self.running.remove(request)
        insort(self.waiting, request, key=_in_line)

    def forget(self, request: Request) -> None:
        """Take a request out of its queue, for good."""
        del self.by_id[request.request_id]
        (self.running if request in self.running else self.waiting).remove(request)
