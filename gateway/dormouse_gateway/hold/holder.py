"""Finds a worker for a request: at once where one has room, else after it waited in line. Owns line and timers.

All doors (gRPC, HTTP) call `lease`; nothing here knows how they speak. The decisions stand in `line`, `granting`,
`room` and `pool`; here they are made whenever something changed (`review`), and carried out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from dormouse_api.status import CallError
from dormouse_gateway import refusals
from dormouse_gateway.hold.alarms import Alarms
from dormouse_gateway.hold.granting import Granting, refuse
from dormouse_gateway.hold.lease_request import LeaseRequest
from dormouse_gateway.hold.line import HoldQueue
from dormouse_gateway.hold.places import Places
from dormouse_gateway.hold.policy import choose_policy
from dormouse_gateway.hold.slept import Slept
from dormouse_gateway.hold.terms import HoldFull, HoldSettings, WaitPolicy, WaitReason
from dormouse_gateway.hold.wait import HoldTicket, Start
from dormouse_gateway.model import Deployment, Endpoint, EndpointId
from dormouse_gateway.router import Lease, Router
from dormouse_gateway.routing.policy import NOTHING, Demand
from dormouse_gateway.workers.pool import NOBODY
from dormouse_kube.reflector import ObjectKey

_TICK_S = 1.0  # everything is told; should something not be, the line moves on all the same


class Holder:
    """Leads requests to workers."""

    def __init__(
        self,
        router: Router,
        settings: HoldSettings,
        *,
        on_first: Callable[[ObjectKey], None] = lambda _: None,
        on_unwanted: Callable[[ObjectKey], None] = lambda _: None,
        on_end: Callable[[str, float], None] = lambda _name, _seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take who hears that a line begins or ends, that nobody waits for a wake, and how long a request was held."""
        self._router = router
        self._settings = settings
        self._places = Places(router, settings.worker_queue)
        self._on_first = on_first
        self._on_unwanted = on_unwanted
        self._on_end = on_end
        self.clock = clock
        self._queue: HoldQueue[LeaseRequest] = HoldQueue(settings.limits)
        self._granting = Granting(router, self._places, self._queue)
        self._slept = Slept(router.pool)
        self._alarms = Alarms(self.review)
        self._is_closed = False
        router.on_change = self.review

    def __repr__(self) -> str:
        """Show who waits."""
        return f"Holder({self._queue!r})"

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._queue)

    def check_integrity(self) -> None:
        """Recount everything. Raises AssertionError."""
        self._queue.check_integrity()
        assert self._alarms.keys() == set(self._queue.lines()), f"{self._alarms!r}, {self!r}"

    def lease_now(
        self,
        deployment: Deployment,
        wait: HoldTicket,
        *,
        demand: Demand = NOTHING,
        tried: Mapping[EndpointId, int] = NOBODY,
    ) -> Lease | None:
        """Return a worker for one request if one has room and nobody's turn is before; the lease must be entered.

        `tried` are left out if another has room.
        """
        wait.is_held = False
        self._router.shares.arrive(deployment.key, wait.flow)
        batch = self._places.batch(deployment)
        if not self._places.is_next(deployment.key, wait.flow, batch, waiting=self._queue.flows(deployment.key)):
            return None
        return self._router.try_lease(deployment.key, batch, tried=tried, demand=demand, flow=wait.flow)

    async def lease(
        self,
        deployment: Deployment,
        wait: HoldTicket,
        *,
        demand: Demand = NOTHING,
        tried: Mapping[EndpointId, int] = NOBODY,
    ) -> Lease:
        """Return a worker for one request, as soon as there is one; the lease must be entered.

        `tried` are left out if another has room now. Raises CallError: UNAVAILABLE by order or after the time for a
        cold start, RESOURCE_EXHAUSTED when the line is full or the workers stay busy, DEADLINE_EXCEEDED.
        """
        if lease := self.lease_now(deployment, wait, demand=demand, tried=tried):
            return lease
        return await self._wait(deployment, self._request(deployment, wait, demand))

    async def lease_heir(
        self,
        deployment: Deployment,
        wait: HoldTicket,
        *,
        like: Endpoint,
        demand: Demand = NOTHING,
        tried: Mapping[EndpointId, int] = NOBODY,
    ) -> Lease:
        """Return a worker that runs the same as another, for the rest of what that one began, as soon as there is one.

        A full one will do now, where nobody has to wait. One of `tried` will do once it has begun anew, or went on
        taking requests for a while. Raises CallError as `lease` does, and UNAVAILABLE at once where the pods that are
        there run something else.
        """
        wait.is_held = False
        if lease := self._router.try_lease(deployment.key, None, tried=tried, like=like, demand=demand, flow=wait.flow):
            return lease
        request = self._request(deployment, wait, demand)
        request.like, request.tried = like, tried
        request.want = (like.revision, like.model_digest, frozenset(tried.items()))
        return await self._wait(deployment, request)

    async def _wait(self, deployment: Deployment, request: LeaseRequest) -> Lease:
        """Have the request wait in line for its worker."""
        current, policy = self._enter(deployment.key, request)
        wait, is_taken = request.wait, False
        try:
            self._look_at(current, policy, request)
            async with asyncio.timeout(max(0.0, wait.deadline_s - self.clock())):
                terms = self._queue.terms(deployment.key)
                if terms and not request.granted.done():
                    wait.is_held = True
                    await wait.on_held(terms.limit_s)
                lease = await request.granted
                is_taken = True
        except TimeoutError:
            raise refusals.held_past_deadline(deployment) from None
        else:
            return lease
        finally:
            self._end(request, deployment, is_taken=is_taken)

    def review(self, key: ObjectKey) -> None:
        """Let go whom a change of the deployment, of its workers or of the time lets go."""
        deployment = self._router.catalogue.get(key)
        is_awake = self._router.pool.is_ready(key)
        self._slept.note(key, deployment, is_awake=is_awake)
        if not self._queue.count(key):
            return
        refusal = _refusal(key, deployment, is_awake=is_awake)
        if refusal or deployment is None:
            refuse(self._queue.take_all(key), refusal)
        else:
            terms = self._policy(deployment, is_awake=is_awake)
            self._queue.turn(key, terms, self.clock())
            self._let_go(deployment, terms, self._queue.in_turn(key))
        self._settle(key)

    def hand_back(self) -> None:
        """Refuse everyone who waits, and from now on everyone who would have to."""
        self._is_closed = True
        for key in self._queue.lines():
            refuse(self._queue.take_all(key), refusals.ending())
            self._settle(key)

    def _request(self, deployment: Deployment, wait: HoldTicket, demand: Demand) -> LeaseRequest:
        return LeaseRequest(deployment.key, wait.num_bytes, self.clock(), wait, demand, flow=wait.flow)

    def _enter(self, key: ObjectKey, request: LeaseRequest) -> tuple[Deployment, WaitPolicy]:
        """Put the request in line; return for what, as it is now. Raises CallError if it may not wait."""
        deployment = self._router.catalogue.get(key)
        is_awake = self._router.pool.is_ready(key)
        refusal = refusals.ending() if self._is_closed else _refusal(key, deployment, is_awake=is_awake)
        if refusal or deployment is None:
            raise refusal or refusals.deleted(key.name)
        if request.like is None:
            request.wait.start = Start.WARM if is_awake else self._slept.start(deployment)
        terms = self._policy(deployment, is_awake=is_awake)
        try:
            self._squeeze_in(request, terms, deployment)
        except HoldFull as error:
            raise refusals.hold_full(deployment, str(error)) from error
        return deployment, terms

    def _squeeze_in(self, request: LeaseRequest, terms: WaitPolicy, deployment: Deployment) -> None:
        """Put the request in line; of a full one, somebody of a key that takes more of it leaves. Raises HoldFull."""
        try:
            self._queue.enter(request, terms, max_requests=deployment.max_held)
        except HoldFull as error:
            other = self._queue.displaced_by(request)
            if other is None:
                raise
            self._queue.leave(other)
            refuse([other], refusals.hold_full(deployment, str(error)))
            self._queue.enter(request, terms, max_requests=deployment.max_held)

    def _look_at(self, deployment: Deployment, terms: WaitPolicy, request: LeaseRequest) -> None:
        """Assign a worker if the request that came can have one: nothing changed for those who were there.

        Of those that want any worker the first in line is asked for again.
        """
        self._let_go(deployment, terms, (request,) if request.like else self._queue.in_turn(request.key, {None}))
        self._settle(request.key)

    def _end(self, request: LeaseRequest, deployment: Deployment, *, is_taken: bool) -> None:
        """Forget the request, whichever way it went; a lease that nobody took goes back."""
        request.wait.over_s = self.clock()
        request.wait.hold_s = request.wait.over_s - request.arrived_s
        self._on_end(deployment.full_name, request.wait.hold_s)
        if self._queue.leave(request):
            self._settle(request.key)
        granted = request.granted
        if granted.cancel() or granted.cancelled() or is_taken:
            return
        if granted.exception() is None:  # asked in any case: asyncio logs what nobody asked for
            granted.result().give_back()

    def _let_go(self, deployment: Deployment, terms: WaitPolicy, requests: Iterable[LeaseRequest]) -> None:
        """Give these a worker, in this order, as long as one has room; refuse who waited long enough."""
        now_s = self.clock()
        self._granting.grant(requests, self._places.batch(deployment), now_s)
        is_saturated = terms.regime is WaitReason.SATURATED
        refusal = refusals.held_too_long(deployment, terms.limit_s, is_saturated=is_saturated)
        refuse(self._queue.take_overdue(deployment.key, now_s), refusal)

    def _settle(self, key: ObjectKey) -> None:
        """Bring what others see and what runs in line with the line."""
        held, deployment = self._queue.count(key), self._router.catalogue.get(key)
        activity = self._router.activity.activity(key)
        was_held = activity.held if activity else 0
        terms = self._queue.terms(key)
        is_cold = terms is not None and terms.regime is not WaitReason.SATURATED
        is_wanted = is_cold and deployment is not None and deployment.desired_state == "Auto"
        self._router.activity.note_held(key, held, is_wanted=is_wanted)
        self._set_alarm(key)
        if not is_wanted:
            self._on_unwanted(key)
        if bool(was_held) != bool(held):
            self._on_first(key)

    def _set_alarm(self, key: ObjectKey) -> None:
        """Look at the line again when its first is due, when a breaker lets one in, and once a second."""
        due_s = self._queue.due_s(key)
        if due_s is None:
            self._alarms.drop(key)
            return
        probe_in_s = self._router.pool.probe_in_s(key)
        delay_s = min(_TICK_S, max(0.0, due_s - self.clock()), _TICK_S if probe_in_s is None else probe_in_s)
        self._alarms.set(key, delay_s)

    def _policy(self, deployment: Deployment, *, is_awake: bool) -> WaitPolicy:
        return choose_policy(deployment, self._settings.saturated_timeout_s, is_awake=is_awake)


def _refusal(key: ObjectKey, deployment: Deployment | None, *, is_awake: bool) -> CallError | None:
    """Return why nobody waits for the deployment, None if they do."""
    if deployment is None:
        return refusals.deleted(f"{key.namespace}/{key.name}")
    return None if is_awake else refusals.not_held(deployment)
