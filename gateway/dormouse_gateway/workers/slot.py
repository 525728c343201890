"""A worker's place in the pool and its counts, and the ticket of each request that it was given. Owns no order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dormouse_gateway.model import Endpoint
from dormouse_gateway.routing.breaker import Breaker, State, Verdict
from dormouse_gateway.routing.policy import Affinity, Demand, Worker
from dormouse_gateway.workers.room import AdmissionWindow


@dataclass(eq=False, slots=True)
class Slot:
    """An endpoint and its counts."""

    endpoint: Endpoint
    total: int  # requests given to it; a newcomer starts with the least of its peers, so that it is not flooded
    outstanding: int = 0
    tokens: int = 0  # outstanding: what our requests still cost there
    last_turn: int = 0  # when it was last chosen; breaks ties in turn
    is_retired: bool = False
    breaker: Breaker = field(default_factory=Breaker)
    room: AdmissionWindow = field(default_factory=AdmissionWindow)
    name: str = field(init=False)  # namespace/pod, which never changes

    def __post_init__(self) -> None:
        """Name it."""
        self.name = f"{self.endpoint.pod.namespace}/{self.endpoint.pod.name}"

    @property
    def is_ready(self) -> bool:
        """Return whether it takes requests: as the worker itself says, else as its pod does."""
        return self.endpoint.ready if self.room.told is None else self.room.is_open

    @property
    def is_heard(self) -> bool:
        """Return whether the worker tells its load."""
        return self.room.told is not None

    def update(self, endpoint: Endpoint) -> None:
        """Take what changed of the pod; what the worker told of itself stays."""
        is_opening = endpoint.ready and not self.endpoint.ready and not self.is_heard
        told = self.endpoint
        self.endpoint = replace(endpoint, model_digest=told.model_digest, resumes=told.resumes, openings=told.openings)
        if is_opening:
            self.open_anew()

    def open_anew(self) -> None:
        """Count that it takes requests again: it woke, or its engine was started again."""
        self.endpoint = replace(self.endpoint, openings=self.endpoint.openings + 1)

    def state(self, now_s: float) -> State:
        """Return the state of its breaker."""
        return self.breaker.state(now_s, is_heard=self.is_heard)

    def admits(self, now_s: float) -> bool:
        """Return whether it is ready and its breaker lets one more request in."""
        breaker = self.breaker
        is_closed = breaker.opened_s is None  # nearly always, and asked of each worker for each request
        return self.is_ready and (is_closed or breaker.admits(now_s, is_heard=self.is_heard))

    def probe_in_s(self, now_s: float) -> float:
        """Return how long its breaker stays open yet; 0 if it is not."""
        return self.breaker.left_s(now_s, is_heard=self.is_heard)

    def begin(self, demand: Demand, affinity: Affinity, *, is_probe: bool, turn: int) -> Ticket:
        """Count one more request, which it gets in this turn."""
        self.total += 1
        self.outstanding += 1
        self.last_turn = turn
        self.tokens += demand.tokens
        if is_probe:
            self.breaker = self.breaker.probed()
        return Ticket(self, demand, affinity, is_probe, tokens_left=demand.tokens)

    def view(self, tokens_of_others: float) -> Worker:
        """Return what policies see; one request from elsewhere counts as so many tokens."""
        room = self.room
        usage = room.told.kv_cache_usage if room.told else 0.0
        tokens, requests = self.tokens + room.others * tokens_of_others, self.outstanding + room.others
        return Worker(self.name, tokens, requests, usage, self.total, self.last_turn)


@dataclass(eq=False, slots=True)
class Ticket:
    """One request at a worker. Whoever acquired it gives it back to `EndpointPool.release` exactly once."""

    slot: Slot
    demand: Demand
    affinity: Affinity
    is_probe: bool  # the one that a half open breaker let in
    tokens_left: int
    verdict: Verdict = Verdict.NOTHING  # set by whoever learns how it went
    has_begun: bool = False
    is_over: bool = False

    @property
    def endpoint(self) -> Endpoint:
        """Return where it is."""
        return self.slot.endpoint

    def advance(self) -> bool:
        """Count a message: the first pays for the prompt, the others for output. True if it closed the breaker."""
        if self.has_begun:
            self._pay(self.demand.tokens_per_message)
            return False
        self.has_begun = True
        self._pay(self.demand.prompt_tokens)
        return self._trust()

    def end(self, now_s: float) -> None:
        """Count its end, and what that says about the worker."""
        assert not self.is_over, "a ticket is released once"
        self.is_over = True
        slot = self.slot
        slot.breaker = slot.breaker.after(self.verdict, now_s, is_probe=self.is_probe)
        self._pay(self.tokens_left)
        slot.outstanding -= 1
        slot.room.end()

    def _pay(self, num_tokens: int) -> None:
        paid = min(num_tokens, self.tokens_left)
        self.tokens_left -= paid
        self.slot.tokens -= paid

    def _trust(self) -> bool:
        """Close the breaker if this is its probe: a worker that began to answer is back, however long the answer is."""
        if not (self.is_probe and self.slot.breaker.is_probing):
            return False
        self.is_probe = False
        self.slot.breaker = self.slot.breaker.trusted()
        return True
