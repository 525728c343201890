"""Who in line gets which worker. Reads router and places; who got one leaves the line."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from dormouse_api.status import CallError
from dormouse_gateway import refusals
from dormouse_gateway.hold.lease_request import LeaseRequest
from dormouse_gateway.hold.line import HoldQueue
from dormouse_gateway.hold.places import Places
from dormouse_gateway.hold.wait import Start
from dormouse_gateway.model import Endpoint
from dormouse_gateway.router import Router
from dormouse_gateway.workers.room import WorkerCapacity

TRUST_AGAIN_S = 1.0  # a worker that lost a stream and goes on saying that it takes requests has it offered then


class Granting:
    """Gives workers to requests, in order."""

    def __init__(self, router: Router, places: Places, queue: HoldQueue[LeaseRequest]) -> None:
        self._router = router
        self._places = places
        self._queue = queue

    def grant(self, requests: Iterable[LeaseRequest], batch: WorkerCapacity, now_s: float) -> None:
        """Give the first a worker, and the next, as long as one has room; what is not to be had is asked for once."""
        hopeless: dict[Hashable, CallError] = {}  # what heirs want and nobody ever offers, with why
        for request in requests:
            if request.granted.cancelled():  # its client has just gone
                self._queue.leave(request)
                continue
            if request.like is None and not self._places.may_start(request.key, request.flow, batch):
                continue  # its key has what it may have while others use the model; their requests may go
            if request.want not in hopeless:
                if self._grant_one(request, batch, now_s):
                    continue
                if request.like is None:
                    return
                if not (refusal := self._heirless(request.like)):
                    continue  # it waits, and whoever needs no particular worker does not wait for it
                hopeless[request.want] = refusal
            self._queue.leave(request)
            refuse([request], hopeless[request.want])

    def _grant_one(self, request: LeaseRequest, batch: WorkerCapacity, now_s: float) -> bool:
        """Give the request a worker if there is one for it."""
        key, tried = request.key, request.tried
        if tried and now_s >= request.arrived_s + TRUST_AGAIN_S:
            tried = self._router.pool.silent(key, tried)
        lease = self._router.try_lease(
            key, batch, tried=tried, like=request.like, demand=request.demand, flow=request.flow
        )
        if lease is None:
            return False
        if request.wait.start is not Start.WARM:
            request.wait.wake_s = max(0.0, self._queue.since_s(key) - request.arrived_s)
        request.wait.hold_s = now_s - request.arrived_s
        self._queue.leave(request)
        request.granted.set_result(lease)
        return True

    def _heirless(self, like: Endpoint) -> CallError | None:
        """Return why not to wait for a worker that will not come: those that are there run something else."""
        return None if self._router.pool.may_get_heir(like) else refusals.nobody_the_same(like)


def refuse(requests: Iterable[LeaseRequest], error: CallError | None) -> None:
    """Tell these why they get no worker; None = the deployment is gone."""
    for request in requests:
        if not request.granted.cancelled():
            request.granted.set_exception(error or refusals.deleted(request.key.name))
