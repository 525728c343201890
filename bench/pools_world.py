"""A pool in virtual time: slots, models and their calls, over any arbiter. Replays hours in seconds.

A model serves all its calls at once; gateways hold what nobody serves, for HOLD_S at most. A holder that has to leave
takes nothing new, and what has not ended after the policy's `drain_s` is ended there and held, to go on where it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Protocol

from bench.pools_picture import Stretch
from bench.pools_trace import Call, Model, Trace
from dormouse_cli.load.figures import percentile
from dormouse_operator.decide.pools.arbiter import Decision
from dormouse_operator.decide.pools.transitions import let_go, settle
from dormouse_operator.model import Key
from dormouse_operator.model.pools import Demand, Demands, Place, Replica, Slot, SlotPhase

START = datetime(2026, 1, 1, tzinfo=UTC)
HOLD_S = 300.0  # default of lifecycle.holdTimeoutSeconds
GOOD_S = 5.0  # a first token later than that is no good
PREFILL_S = 0.1


class Arbiter(Protocol):
    """Who decides: the operator's, or a rival."""

    @property
    def drain_s(self) -> float:
        """Return how long the calls of a holder that leaves may take to end."""

    def decide(self, slots: list[Slot], demands: Demands, now: datetime) -> Decision:
        """Return what changes now."""


@dataclass(slots=True, eq=False)
class Job:
    """A call on its way."""

    call: Call
    left_s: float  # of its work
    held_s: float  # since when it is held
    served_s: float = 0.0  # since when it runs
    turn: int = 0  # how often it was served; what was planned in an earlier turn does not happen


@dataclass(slots=True)
class Outcome:
    """What became of the calls, and what slots did all the time."""

    seconds: float
    num_slots: int
    num_calls: int
    waits_s: list[float] = field(default_factory=list)  # until the first token, of all that got one
    lost: int = 0
    parked: int = 0  # times that a stream had to go on later
    longest_pause_s: float = 0.0  # of such a stream
    switches: int = 0
    switching_s: float = 0.0  # of slots that computed for nobody, since somebody left or came
    stretches: list[Stretch] = field(default_factory=list)  # who had which slot, until its last call had ended

    def held_s(self, model: int) -> float:
        """Return for how long a model had a slot, all in all."""
        return sum(found.end_s - found.start_s for found in self.stretches if found.model == model)

    @property
    def goodput(self) -> float:
        """Return how many calls a minute got their first token in time."""
        return 60.0 * sum(wait_s <= GOOD_S for wait_s in self.waits_s) / self.seconds

    @property
    def switching_share(self) -> float:
        """Return the share of all slots' time that went to switching."""
        return self.switching_s / (self.seconds * self.num_slots)

    def wait_s(self, percent: float) -> float:
        """Return a percentile of the waits; a call that got no token has waited as long as it was held."""
        return percentile([*self.waits_s, *[HOLD_S] * (self.num_calls - len(self.waits_s))], percent)


class World:
    """One pool with one awake replica a slot, from the first call to the last."""

    def __init__(self, trace: Trace, arbiter: Arbiter) -> None:
        self._trace, self._arbiter = trace, arbiter
        self._slots = {str(number): Slot(name=str(number), since=START) for number in range(trace.num_slots)}
        self._running: dict[str, set[Job]] = {name: set() for name in self._slots}
        self._still_since_s: dict[str, float] = {}  # slots that compute for nobody, since somebody leaves or comes
        self._held: list[list[Job]] = [[] for _ in trace.models]
        self._serving: dict[int, str] = {}  # by model, the slot
        self._asked_s = [0.0] * len(trace.models)
        self._places = [_places(number, model) for number, model in enumerate(trace.models)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._dues: set[float] = set()
        self._now_s = 0.0
        self.outcome = Outcome(trace.seconds, trace.num_slots, len(trace.calls))

    def __repr__(self) -> str:
        return f"World({self._now_s:.1f} s, {', '.join(f'{slot.name}: {slot.phase}' for slot in self._slots.values())})"

    def run(self) -> Outcome:
        """Replay the trace."""
        for call in self._trace.calls:
            self._plan(call.at_s, partial(self._arrive, Job(call, call.work_s, call.at_s)))
        while self._events:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()
            self._decide()
        for slot in self._slots.values():
            if slot.phase is SlotPhase.HELD:
                self._note(slot, self._trace.seconds)
        return self.outcome

    @property
    def _now(self) -> datetime:
        return START + timedelta(seconds=self._now_s)

    def _plan(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen))

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        self._plan(self._now_s + seconds, happen)

    def _decide(self) -> None:
        slots = list(self._slots.values())
        decision = self._arbiter.decide(slots, self._demands(), self._now)
        for slot in decision.apply_to(slots, self._now).values():
            self._slots[slot.name] = slot
            self._begin(slot)
        if decision.due is not None and decision.due > self._now:
            due_s = (decision.due - START).total_seconds()
            if due_s not in self._dues:
                self._dues.add(due_s)
                self._plan(due_s, partial(self._dues.discard, due_s))

    def _demands(self) -> Demands:
        """Return what is asked of models that are called, or hold a slot."""
        holding = {number_of(holding.replica) for slot in self._slots.values() for holding in slot.holders}
        called = {number for number, held in enumerate(self._held) if held}
        return {key_of(number): self._demand(number) for number in sorted(holding | called)}

    def _demand(self, number: int) -> Demand:
        held = self._held[number]
        slot = self._serving.get(number)
        is_called = bool(held) or (slot is not None and bool(self._running[slot]))
        return Demand(
            key=key_of(number),
            places=self._places[number],
            wanted=int(is_called),
            waiting_since=START + timedelta(seconds=min(job.held_s for job in held)) if held else None,
            quiet_s=self._now_s - self._asked_s[number],
        )

    def _arrive(self, job: Job) -> None:
        self._asked_s[job.call.model] = self._now_s
        self._hold(job)

    def _hold(self, job: Job) -> None:
        """Hold a call, or have it served at once where its model serves."""
        job.held_s = self._now_s
        self._held[job.call.model].append(job)
        self._serve(job.call.model)
        if job in self._held[job.call.model]:
            self._after(HOLD_S, partial(self._lose, job, job.turn))

    def _lose(self, job: Job, turn: int) -> None:
        if job.turn == turn and job in self._held[job.call.model]:
            self._held[job.call.model].remove(job)
            self.outcome.lost += 1

    def _serve(self, number: int) -> None:
        """Have a model that serves take whatever is held for it."""
        if number not in self._serving:
            return
        slot = self._serving[number]
        for job in self._held[number]:
            if job.turn == 0:
                self.outcome.waits_s.append(self._now_s - job.call.at_s + PREFILL_S)
            self.outcome.longest_pause_s = max(
                self.outcome.longest_pause_s, self._now_s - job.held_s if job.turn else 0.0
            )
            job.turn += 1
            job.served_s = self._now_s
            self._running[slot].add(job)
            self._after(job.left_s, partial(self._end, job, job.turn, slot))
        self._held[number].clear()

    def _end(self, job: Job, turn: int, slot: str) -> None:
        if job.turn == turn and job in self._running[slot]:
            self._running[slot].remove(job)
            self._sleep_if_drained(slot)

    def _begin(self, slot: Slot) -> None:
        """Do what follows from a write: somebody leaves, or comes."""
        if slot.phase is SlotPhase.GRANTING and slot.next is not None:
            self._still_since_s.setdefault(slot.name, self._now_s)
            self._after(self._trace.models[number_of(slot.next)].wake_s, partial(self._awake, slot.name))
        elif slot.phase is SlotPhase.YIELDING and slot.leaving is not None:
            self._leave(slot, number_of(slot.leaving))

    def _leave(self, slot: Slot, number: int) -> None:
        del self._serving[number]
        self.outcome.switches += 1
        self._after(self._arbiter.drain_s, partial(self._park, slot.name, slot.epoch))
        self._sleep_if_drained(slot.name)

    def _park(self, name: str, epoch: int) -> None:
        """End what still runs on a slot whose time for draining is over; it goes on later, or elsewhere."""
        if self._slots[name].epoch != epoch or not self._running[name]:
            return
        jobs, self._running[name] = self._running[name], set()
        for job in sorted(jobs, key=lambda job: job.call.at_s):
            self.outcome.parked += 1
            job.left_s -= self._now_s - job.served_s
            self._hold(job)
        self._sleep_if_drained(name)

    def _sleep_if_drained(self, name: str) -> None:
        slot = self._slots[name]
        if slot.leaving is None or self._running[name] or name in self._still_since_s:
            return
        self._still_since_s[name] = self._now_s
        self._note(slot, self._now_s)
        self._after(self._trace.models[number_of(slot.leaving)].sleep_s, partial(self._asleep, name))

    def _note(self, slot: Slot, end_s: float) -> None:
        """Remember that a slot was its holder's until then."""
        holding = slot.holders[0]
        start_s = (holding.since - START).total_seconds()
        self.outcome.stretches.append(Stretch(slot.name, number_of(holding.replica), start_s, max(start_s, end_s)))

    def _asleep(self, name: str) -> None:
        self._slots[name] = let_go(self._slots[name], self._now)
        self._begin(self._slots[name])

    def _awake(self, name: str) -> None:
        slot = self._slots[name] = settle(self._slots[name], self._now)
        number = number_of(slot.holders[0].replica)
        self.outcome.switching_s += self._now_s - self._still_since_s.pop(name)
        self._serving[number] = name
        self._serve(number)


def key_of(number: int) -> Key:
    """Return the name of a model by its place in popularity."""
    return Key("pool", f"m{number:03d}")


def number_of(replica: Replica) -> int:
    """Return which model a replica is of."""
    return int(replica.key.name[1:])


def _places(number: int, model: Model) -> tuple[Place, ...]:
    return tuple(Place(Replica(key_of(number), slot), str(slot), model.wake_s, model.sleep_s) for slot in model.slots)
