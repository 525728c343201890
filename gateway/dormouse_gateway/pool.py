"""Which endpoint takes a request: the one with the fewest outstanding. Owns the endpoints and their counts.

Everything here is synchronous: it decides, and returns the endpoints whose connections the caller must close.
An endpoint that goes away while requests run on it is *retired*: it is given nothing new, and is handed back for
closing when its last request has ended, so that a worker that drains can finish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.model import Endpoint, EndpointId
from dormouse_gateway.room import Batch, Room
from dormouse_kube.reflector import ObjectKey


@dataclass(slots=True)
class Slot:
    """An endpoint and its counts. Whoever acquired it gives it back to `EndpointPool.release` exactly once."""

    endpoint: Endpoint
    total: int  # requests given to it; a newcomer starts with the least of its peers, so that it is not flooded
    outstanding: int = 0
    last_turn: int = 0  # when it was last chosen; breaks ties in turn
    is_retired: bool = False
    is_doubted: bool = False  # it has just failed; whoever said so takes it back
    room: Room = field(default_factory=Room)

    @property
    def is_ready(self) -> bool:
        """Tell whether it takes requests: as the worker itself says, else as its pod does."""
        return self.endpoint.ready if self.room.told is None else self.room.is_open

    @property
    def rank(self) -> tuple[int, int, int]:
        """Return what orders slots: the lowest is next."""
        return (self.outstanding + self.room.others, self.total, self.last_turn)


@dataclass(slots=True)
class EndpointPool:
    """The endpoints of all deployments."""

    _slots: dict[ObjectKey, Slot] = field(default_factory=dict)  # by pod
    _by_deployment: dict[ObjectKey, dict[ObjectKey, Slot]] = field(default_factory=dict)
    _retired: dict[EndpointId, Slot] = field(default_factory=dict)
    _turns: count[int] = field(default_factory=lambda: count(1))

    def __repr__(self) -> str:
        """Show every endpoint with its state and its counts."""
        slots = [*(self._slots[pod] for pod in sorted(self._slots)), *self._retired.values()]
        return f"EndpointPool({', '.join(_show(slot) for slot in slots)})"

    def put(self, endpoint: Endpoint) -> list[EndpointId]:
        """Add or update the endpoint of a pod; return what must be closed: the pod's former address."""
        known = self._slots.get(endpoint.pod)
        if known and _place(known.endpoint) == _place(endpoint):
            known.endpoint = replace(endpoint, model_digest=known.endpoint.model_digest)
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

    def identify(self, endpoint: EndpointId, model_digest: str) -> None:
        """Note which files a worker says it read. No error if it is gone."""
        for slot in self._all():
            if slot.endpoint.id == endpoint:
                slot.endpoint = replace(slot.endpoint, model_digest=model_digest)

    def has_peer(self, endpoint: Endpoint) -> bool:
        """Tell whether another ready endpoint runs the same engine, so that streams can move there."""
        others = (slot for slot in self._by_deployment.get(endpoint.deployment, {}).values())
        return any(
            slot.is_ready and not slot.is_doubted and endpoint.runs_the_same(slot.endpoint)
            for slot in others
            if slot.endpoint.id != endpoint.id
        )

    def is_ready(self, deployment: ObjectKey) -> bool:
        """Tell whether any endpoint takes requests, full and doubted ones included."""
        return any(slot.is_ready for slot in self._by_deployment.get(deployment, {}).values())

    def tell(self, endpoint: Endpoint, load: WorkerLoad | None) -> None:
        """Take what the worker there tells, None when it can not be heard. Safe if the endpoint has gone."""
        slot = self._slots.get(endpoint.pod)
        if slot and slot.endpoint.id == endpoint.id:
            was_ready = slot.room.is_open
            slot.room.tell(load, slot.outstanding)
            slot.is_doubted = slot.is_doubted and (was_ready or not slot.room.is_open)

    def doubt(self, endpoint: Endpoint, *, is_doubted: bool = True) -> None:
        """Give the endpoint nothing that needs it ready until it is trusted again, or says anew that it is ready."""
        slot = self._slots.get(endpoint.pod)
        if slot and slot.endpoint.id == endpoint.id:
            slot.is_doubted = is_doubted

    def room_of(self, endpoint: Endpoint) -> Room | None:
        """Return what the worker there told of its room, None if the endpoint has gone."""
        slot = self._slots.get(endpoint.pod)
        return slot.room if slot and slot.endpoint.id == endpoint.id else None

    def acquire(
        self,
        deployment: ObjectKey,
        *,
        need_ready: bool,
        tried: Iterable[EndpointId] = (),
        like: Endpoint | None = None,
        batch: Batch | None = None,
    ) -> Slot | None:
        """Choose an endpoint and count the request; None if there is none. Ready ones go first where both will do.

        With `like`, only endpoints that run the same will do; with `batch`, those that have room for one more.
        """
        excluded = frozenset(tried)
        slots = [slot for slot in self._by_deployment.get(deployment, {}).values() if slot.endpoint.id not in excluded]
        if like is not None:
            slots = [slot for slot in slots if like.runs_the_same(slot.endpoint)]
        ready = [slot for slot in slots if slot.is_ready and not slot.is_doubted]
        if batch:
            ready = [slot for slot in ready if slot.room.takes(slot.outstanding, batch)]
        candidates = ready if ready or need_ready else slots
        chosen = min(candidates, key=lambda slot: slot.rank, default=None)
        if chosen:
            chosen.outstanding += 1
            chosen.total += 1
            chosen.last_turn = next(self._turns)
        return chosen

    def release(self, slot: Slot) -> list[EndpointId]:
        """Count the end of a request; return what must be closed now."""
        assert slot.outstanding > 0, "a slot is released once per acquire"
        slot.outstanding -= 1
        slot.room.end()
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

    def _all(self) -> list[Slot]:
        return [*self._slots.values(), *self._retired.values()]


def _place(endpoint: Endpoint) -> tuple[EndpointId, ObjectKey]:
    return (endpoint.id, endpoint.deployment)


def _state(slot: Slot) -> str:
    if slot.is_retired:
        return "retired"
    return "ready" if slot.is_ready else "running"


def _show(slot: Slot) -> str:
    endpoint = slot.endpoint
    counts = f"{slot.outstanding} outstanding of {slot.total}"
    return f"{endpoint.pod.namespace}/{endpoint.pod.name} {_state(slot)} at {endpoint.id.address}: {counts}"
