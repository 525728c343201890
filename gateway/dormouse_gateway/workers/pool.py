"""Which endpoints may take a request, of which a policy chooses one. Owns the endpoints and their counts.

Everything here is synchronous: it decides, and returns the endpoints whose connections the caller must close.
An endpoint that goes away while requests run on it is *retired*: it is given nothing new, and is handed back for
closing when its last request has ended, so that a worker that drains can finish.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from dormouse_api.names import DECODE, PREFILL
from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.model import Endpoint, EndpointId
from dormouse_gateway.routing.breaker import Breaker, State
from dormouse_gateway.routing.built_in import PrefixAffinity
from dormouse_gateway.routing.demand import ASSUMED_OUTPUT_TOKENS
from dormouse_gateway.routing.policy import NOTHING, Affinity, Demand, RouterPolicy
from dormouse_gateway.workers.room import AdmissionWindow, WorkerCapacity
from dormouse_gateway.workers.slot import Slot, Ticket
from dormouse_kube.reflector import ObjectKey

NOBODY: Mapping[EndpointId, int] = {}


@dataclass(slots=True)
class EndpointPool:
    """The endpoints of all deployments."""

    policy: RouterPolicy = field(default_factory=PrefixAffinity)
    clock: Callable[[], float] = time.monotonic
    _slots: dict[ObjectKey, Slot] = field(default_factory=dict)  # by pod
    _by_deployment: dict[ObjectKey, dict[ObjectKey, Slot]] = field(default_factory=dict)
    _retired: dict[EndpointId, Slot] = field(default_factory=dict)
    _turns: count[int] = field(default_factory=lambda: count(1))

    def __repr__(self) -> str:
        """Show every endpoint with its state and its counts."""
        slots, now_s = [*(self._slots[pod] for pod in sorted(self._slots)), *self._retired.values()], self.clock()
        return f"EndpointPool({', '.join(_show(slot, now_s) for slot in slots)})"

    def put(self, endpoint: Endpoint) -> list[EndpointId]:
        """Add or update the endpoint of a pod; return what must be closed: the pod's former address."""
        known = self._slots.get(endpoint.pod)
        if known and _place(known.endpoint) == _place(endpoint):
            known.update(endpoint)
            return []
        closing = self.remove(endpoint.pod)
        peers = self._by_deployment.setdefault(endpoint.deployment, {})
        least = min((peer.total for peer in peers.values()), default=0)
        slot = self._retired.pop(endpoint.id, None) or Slot(endpoint, least)
        slot.endpoint, slot.is_retired = endpoint, False
        self._slots[endpoint.pod] = peers[endpoint.pod] = slot
        return [gone for gone in closing if gone != endpoint.id]

    def remove(self, pod: ObjectKey) -> list[EndpointId]:
        """Forget the endpoint of a pod; return what must be closed now. No error if it is not known."""
        slot = self._slots.pop(pod, None)
        if slot is None:
            return []
        peers = self._by_deployment[slot.endpoint.deployment]
        del peers[pod]
        if not peers:
            del self._by_deployment[slot.endpoint.deployment]
        if not slot.outstanding:
            return [slot.endpoint.id]
        slot.is_retired = True
        self._retired[slot.endpoint.id] = slot
        return []

    def endpoint_of(self, pod: ObjectKey) -> Endpoint | None:
        """Return the endpoint of a pod, None if it has none."""
        slot = self._slots.get(pod)
        return slot.endpoint if slot else None

    def endpoints_of(self, deployment: ObjectKey) -> list[Endpoint]:
        """Return the endpoints of a deployment, retired ones left out."""
        return [slot.endpoint for slot in self._by_deployment.get(deployment, {}).values()]

    def identify(self, endpoint: EndpointId, model_digest: str, *, resumes: bool = True) -> None:
        """Note which files a worker says it read, and whether it goes on with streams. No error if it is gone."""
        for slot in self._all():
            if slot.endpoint.id == endpoint:
                slot.endpoint = replace(slot.endpoint, model_digest=model_digest, resumes=resumes)

    def has_peer(self, endpoint: Endpoint) -> bool:
        """Return whether another ready endpoint runs the same engine, so that streams can move there."""
        now_s = self.clock()
        return any(
            slot.is_ready and slot.state(now_s) is not State.OPEN and endpoint.runs_the_same(slot.endpoint)
            for slot in self._slots_of(endpoint.deployment)
            if slot.endpoint.id != endpoint.id
        )

    def may_get_heir(self, endpoint: Endpoint) -> bool:
        """Return whether some endpoint runs the same, or will: no other is there yet that shows the contrary."""
        slots = list(self._slots_of(endpoint.deployment))
        return not slots or any(endpoint.runs_the_same(slot.endpoint) for slot in slots)

    def silent(self, deployment: ObjectKey, tried: Mapping[EndpointId, int]) -> Mapping[EndpointId, int]:
        """Return those of `tried` that do not say themselves, over a connection that holds, that they take requests."""
        open_ids = {slot.endpoint.id for slot in self._slots_of(deployment) if slot.room.is_open}
        return {endpoint: openings for endpoint, openings in tried.items() if endpoint not in open_ids}

    def is_ready(self, deployment: ObjectKey) -> bool:
        """Return whether any endpoint takes requests, full ones and those with an open breaker included."""
        return any(slot.is_ready for slot in self._slots_of(deployment))

    def num_ready(self, deployment: ObjectKey) -> int:
        """Return how many endpoints take requests."""
        return sum(slot.is_ready for slot in self._slots_of(deployment))

    def probe_in_s(self, deployment: ObjectKey) -> float | None:
        """Return when the first open breaker of a ready endpoint will let one in; None if no breaker is open."""
        now_s = self.clock()
        left_s = (slot.probe_in_s(now_s) for slot in self._slots_of(deployment) if slot.is_ready)
        return min((seconds for seconds in left_s if seconds > 0), default=None)

    def breakers(self, deployment: ObjectKey) -> list[tuple[Endpoint, State]]:
        """Return the deployment's endpoints and the state of their breakers, retired ones left out."""
        now_s = self.clock()
        return [(slot.endpoint, slot.state(now_s)) for slot in self._slots_of(deployment)]

    def tell(self, endpoint: Endpoint, load: WorkerLoad | None) -> None:
        """Take what the worker there tells, None when it cannot be heard. Safe if the endpoint has gone."""
        slot = self._slots.get(endpoint.pod)
        if slot and slot.endpoint.id == endpoint.id:
            was_open = slot.room.is_open
            slot.room.tell(load, slot.outstanding)
            if slot.room.is_open and not was_open:  # as good as another worker: it woke, its engine was started again
                slot.breaker = Breaker()
                slot.open_anew()

    def room_of(self, endpoint: Endpoint) -> AdmissionWindow | None:
        """Return what the worker there told of its room, None if the endpoint has gone."""
        slot = self._slots.get(endpoint.pod)
        return slot.room if slot and slot.endpoint.id == endpoint.id else None

    def acquire(
        self,
        deployment: ObjectKey,
        *,
        need_ready: bool,
        tried: Mapping[EndpointId, int] = NOBODY,
        like: Endpoint | None = None,
        batch: WorkerCapacity | None = None,
        demand: Demand = NOTHING,
    ) -> Ticket | None:
        """Choose an endpoint and count the request; None if there is none. Ready ones go first where both will do.

        Of the role that the demand names, while one of them takes requests. With `like`, only endpoints that run the
        same will do; with `batch`, those that have room for one more. Those of `tried` will not that have not begun
        anew since: its values are their `openings`.
        """
        slots: Sequence[Slot] = [slot for slot in self._slots_of(deployment) if not _was_tried(slot.endpoint, tried)]
        if like is not None:
            slots = [slot for slot in slots if like.runs_the_same(slot.endpoint)]
        if demand.role:
            slots = self._of_role(slots, demand.role)
        ready = self._admitting(slots, is_last_resort=like is not None)
        if batch:
            ready = [slot for slot in ready if slot.room.takes(slot.outstanding, batch)]
        if ready or need_ready:
            return self._choose(ready, demand, is_probe_in=True)
        return self._choose(slots, demand, is_probe_in=False)

    def begin_at(self, deployment: ObjectKey, http_address: str, demand: Demand) -> Ticket | None:
        """Count a request that somebody else sent to the endpoint with this HTTP address; None if there is none."""
        slots = (slot for slot in self._slots_of(deployment) if slot.endpoint.http_address == http_address)
        slot = next(slots, None)
        return slot.begin(demand, Affinity.NONE, is_probe=False, turn=next(self._turns)) if slot else None

    def release(self, ticket: Ticket) -> list[EndpointId]:
        """Count the end of a request; return what must be closed now."""
        slot = ticket.slot
        ticket.end(self.clock())
        if slot.outstanding or not slot.is_retired:
            return []
        del self._retired[slot.endpoint.id]
        return [slot.endpoint.id]

    def in_flight(self) -> Counter[ObjectKey]:
        """Return the number of running requests per deployment, those on retired endpoints included."""
        sums: Counter[ObjectKey] = Counter()
        for slot in self._all():
            sums[slot.endpoint.deployment] += slot.outstanding
        return +sums

    def states(self) -> Counter[tuple[ObjectKey, str]]:
        """Return the number of endpoints per deployment and state: ready, running (but not ready), retired."""
        return Counter((slot.endpoint.deployment, _state(slot)) for slot in self._all())

    def can_hand_over(self, deployment: ObjectKey) -> bool:
        """Return whether a worker for prompts is ready, and one for decoding that runs the same."""
        endpoints = [slot.endpoint for slot in self._slots_of(deployment) if self._takes_requests(slot)]
        decoding = [endpoint for endpoint in endpoints if endpoint.role == DECODE]
        return any(endpoint.role == PREFILL and any(map(endpoint.runs_the_same, decoding)) for endpoint in endpoints)

    def _of_role(self, slots: Sequence[Slot], role: str) -> Sequence[Slot]:
        """Return those with this role, or all while none of them takes requests."""
        having = [slot for slot in slots if slot.endpoint.role == role]
        return having if any(map(self._takes_requests, having)) else slots

    def _takes_requests(self, slot: Slot) -> bool:
        return slot.is_ready and slot.state(self.clock()) is not State.OPEN

    def _admitting(self, slots: Sequence[Slot], *, is_last_resort: bool) -> Sequence[Slot]:
        """Return who is ready and lets one in. A stream that lost its worker probes none if it can go on elsewhere."""
        now_s = self.clock()
        admitting = [slot for slot in slots if slot.admits(now_s)]
        if not is_last_resort:
            return admitting
        closed = [slot for slot in admitting if slot.state(now_s) is State.CLOSED]
        return closed or admitting or [slot for slot in slots if slot.is_ready]

    def _choose(self, slots: Sequence[Slot], demand: Demand, *, is_probe_in: bool) -> Ticket | None:
        """Have the policy choose, and count the request. Breakers that are not closed let it in as their probe."""
        if not slots:
            return None
        tokens_of_others = _mean_tokens(slots)
        workers = [slot.view(tokens_of_others) for slot in slots]
        choice = self.policy.choose(demand, workers)
        if choice is None:
            return None
        slot = slots[workers.index(choice.worker)]
        is_probe = is_probe_in and slot.breaker.opened_s is not None
        return slot.begin(demand, choice.affinity, is_probe=is_probe, turn=next(self._turns))

    def _slots_of(self, deployment: ObjectKey) -> Iterable[Slot]:
        return self._by_deployment.get(deployment, {}).values()

    def _all(self) -> list[Slot]:
        return [*self._slots.values(), *self._retired.values()]


def _was_tried(endpoint: Endpoint, tried: Mapping[EndpointId, int]) -> bool:
    return tried.get(endpoint.id, -1) == endpoint.openings


def _place(endpoint: Endpoint) -> tuple[EndpointId, ObjectKey]:
    return (endpoint.id, endpoint.deployment)


def _state(slot: Slot) -> str:
    if slot.is_retired:
        return "retired"
    return "ready" if slot.is_ready else "running"


def _mean_tokens(slots: Sequence[Slot]) -> float:
    """Return what our requests at these still cost in the mean: as much do those of other gateways, more or less."""
    outstanding = sum(slot.outstanding for slot in slots)
    return sum(slot.tokens for slot in slots) / outstanding if outstanding else float(ASSUMED_OUTPUT_TOKENS)


def _show(slot: Slot, now_s: float) -> str:
    breaker = slot.state(now_s)
    counts = f"{slot.outstanding} outstanding of {slot.total}"
    counts += "" if breaker is State.CLOSED else f", breaker {breaker}"
    return f"{slot.name} {_state(slot)} at {slot.endpoint.id.address}: {counts}"
