"""Who waits for a worker, in which order, and for how long at most. Owns the waiting requests, and nothing that runs.

One line per deployment. Of one key requests leave in the order of their arrival; several keys take turns by weight, as
in start-time fair queueing: each request begins, in a time that counts turns, when the one before of its key ends, or
now. Everything here is synchronous and told the time: it decides, the caller acts. A line is in one *regime*, because a
model that must wake and workers that are full are waited for differently; when the regime changes everyone in the line
gets the whole time of the new one. So a line's requests are due in the order of their arrival, and only the first ever
needs to be looked at.

Some of a line want a particular worker. What the first of a key's who want the same cannot have, none of those can: so
a look at the line costs a step for each want of each key and for each that goes, however many wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from dormouse_gateway.clients.shares import NOBODYS, Flow
from dormouse_gateway.hold.terms import HoldFull, HoldLimits, WaitPolicy
from dormouse_kube.reflector import ObjectKey


@dataclass(eq=False, slots=True)
class Held:
    """One request that waits."""

    key: ObjectKey  # of its deployment
    num_bytes: int
    arrived_s: float
    want: Hashable = field(default=None, kw_only=True)  # equal for those that the same workers will do for; None = any
    flow: Flow = field(default=NOBODYS, kw_only=True)
    turn: float = field(default=0.0, kw_only=True)  # when it begins, in turns
    place: int = field(default=0, kw_only=True)  # among all that ever waited


H = TypeVar("H", bound=Held)


class _Group(NamedTuple):
    """Whom the same workers will do for, of one flow."""

    want: Hashable
    flow: str


@dataclass(slots=True)
class _Line(Generic[H]):
    """The requests of one deployment."""

    terms: WaitPolicy
    since_s: float  # when the regime began
    waiting: OrderedDict[H, None] = field(default_factory=OrderedDict)
    groups: dict[_Group, OrderedDict[H, None]] = field(default_factory=dict)  # the same by flow and want
    ends: dict[str, float] = field(default_factory=dict)  # by flow, when its last one ends, in turns
    now: float = 0.0  # in turns: when the last one that was let go, or refused, began
    num_bytes: int = 0

    def add(self, held: H) -> None:
        """Put it at the end."""
        held.turn = max(self.now, self.ends.get(held.flow.name, 0.0))
        self.ends[held.flow.name] = held.turn + 1 / held.flow.weight
        self.waiting[held] = None
        self.groups.setdefault(_group_of(held), OrderedDict())[held] = None

    def remove(self, held: H) -> None:
        """Take it out, wherever it is."""
        group = self.groups[_group_of(held)]
        if next(iter(group)) is held:
            self.now = max(self.now, held.turn)
        del self.waiting[held], group[held]
        if not group:
            del self.groups[_group_of(held)]

    @property
    def first(self) -> H:
        return next(iter(self.waiting))

    def due_s(self, held: Held) -> float:
        """Return when the request has waited long enough."""
        return max(held.arrived_s, self.since_s) + self.terms.limit_s


class HoldQueue(Generic[H]):
    """The lines of all deployments."""

    def __init__(self, limits: HoldLimits) -> None:
        """Start without any request."""
        self._limits = limits
        self._lines: dict[ObjectKey, _Line[H]] = {}  # none is empty
        self._num_requests = 0
        self._num_bytes = 0
        self._num_entered = 0  # since the start

    def __repr__(self) -> str:
        """Show how many wait where, and for what."""
        lines = [f"{key.namespace}/{key.name} {_show(line)}" for key, line in sorted(self._lines.items())]
        return f"HoldQueue({', '.join([f'{self._num_requests} requests of {self._num_bytes} bytes', *lines])})"

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._num_requests

    def count(self, key: ObjectKey) -> int:
        """Return how many requests of the deployment wait."""
        line = self._lines.get(key)
        return len(line.waiting) if line else 0

    def terms(self, key: ObjectKey) -> WaitPolicy | None:
        """Return what the deployment's line waits for, None if nobody waits."""
        line = self._lines.get(key)
        return line.terms if line else None

    def enter(self, held: H, terms: WaitPolicy, *, max_requests: int) -> None:
        """Put the request at the end of its deployment's line, which has these terms from now on. Raises HoldFull."""
        self._check_room(held, max_requests)
        line = self._lines.setdefault(held.key, _Line(terms, held.arrived_s))
        self.turn(held.key, terms, held.arrived_s)
        self._num_entered += 1
        held.place = self._num_entered
        line.add(held)
        self._count(line, 1, held.num_bytes)

    def displaced_by(self, held: Held) -> H | None:
        """Return who has to leave a full line for this one: the youngest of the flow that takes most of it; or nobody.

        Nobody has to unless his flow still has more than this one's then, by weight.
        """
        line = self._lines.get(held.key)
        groups = [group for name, group in line.groups.items() if name.want is None] if line else []
        if not groups:
            return None
        most = max(groups, key=_load_of)
        mine = next((len(group) for group in groups if next(iter(group)).flow.name == held.flow.name), 0)
        return next(reversed(most)) if _load_of(most) > (mine + 1) / held.flow.weight else None

    def flows(self, key: ObjectKey) -> set[Flow] | None:
        """Return whose requests wait, if all of them take any worker; else None."""
        line = self._lines.get(key)
        groups = line.groups if line else {}
        if any(name.want is not None for name in groups):
            return None
        return {next(iter(group)).flow for group in groups.values()}

    def leave(self, held: H) -> bool:
        """Take the request out, wherever in the line it is; False if it does not wait."""
        line = self._lines.get(held.key)
        if line is None or held not in line.waiting:
            return False
        line.remove(held)
        self._count(line, -1, -held.num_bytes)
        if not line.waiting:
            del self._lines[held.key]
        return True

    def in_turn(self, key: ObjectKey, wants: Collection[Hashable] | None = None) -> Iterator[H]:
        """Yield whose turn it is. Who stays in line then stays with all of its flow who want the same.

        With `wants`, only those who want one of these. Nobody else may come or go meanwhile.
        """
        line = self._lines.get(key)
        groups = line.groups if line else {}
        asked = [(name, group) for name, group in groups.items() if wants is None or name.want in wants]
        firsts = [(*_order_of(next(iter(group))), name) for name, group in asked]
        heapq.heapify(firsts)  # places differ, so names are never compared
        while firsts:
            _, place, name = firsts[0]
            yield next(iter(groups[name]))
            following = next(iter(groups.get(name, ())), None)
            if following is None or following.place == place:
                heapq.heappop(firsts)
            else:
                heapq.heapreplace(firsts, (*_order_of(following), name))

    def turn(self, key: ObjectKey, terms: WaitPolicy, now_s: float) -> None:
        """Have the line wait under these terms. Another regime gives everyone the whole time; safe if nobody waits."""
        line = self._lines.get(key)
        if line is None:
            return
        if line.terms.regime is not terms.regime:
            line.since_s = now_s
        line.terms = terms

    def since_s(self, key: ObjectKey) -> float:
        """Return when the line's regime began; somebody must wait."""
        return self._lines[key].since_s

    def due_s(self, key: ObjectKey) -> float | None:
        """Return when the first of the line has waited long enough, None if nobody waits."""
        line = self._lines.get(key)
        return line.due_s(line.first) if line else None

    def take_overdue(self, key: ObjectKey, now_s: float) -> list[H]:
        """Take out everyone in the line who has waited long enough."""
        taken: list[H] = []
        while (due_s := self.due_s(key)) is not None and due_s <= now_s:
            held = self._lines[key].first
            self.leave(held)
            taken.append(held)
        return taken

    def take_all(self, key: ObjectKey) -> list[H]:
        """Take out the whole line."""
        line = self._lines.get(key)
        taken = list(line.waiting) if line else []
        for held in taken:
            self.leave(held)
        return taken

    def lines(self) -> list[ObjectKey]:
        """Return the deployments for which somebody waits."""
        return sorted(self._lines)

    def check_integrity(self) -> None:
        """Recount everything. Raises AssertionError."""
        sizes = {key: [held.num_bytes for held in line.waiting] for key, line in self._lines.items()}
        assert all(sizes.values()), f"empty lines: {self!r}"
        for key, line in self._lines.items():
            assert line.num_bytes == sum(sizes[key]), f"{line.num_bytes} bytes counted, {sum(sizes[key])} there: {key}"
            arrivals = [held.arrived_s for held in line.waiting]
            assert arrivals == sorted(arrivals), f"out of order: {key}"
            alike = sorted((held for group in line.groups.values() for held in group), key=lambda held: held.place)
            assert alike == list(line.waiting), f"not grouped as they stand in line: {key}"
            assert all(line.groups.values()), f"nobody wants what is kept: {key}"
        assert self._num_requests == sum(len(line) for line in sizes.values()), repr(self)
        assert self._num_bytes == sum(sum(line) for line in sizes.values()), repr(self)

    def _check_room(self, held: Held, max_requests: int) -> None:
        """Raise HoldFull with the limit that the request would break."""
        line = self._lines.get(held.key)
        num_requests, num_bytes = (len(line.waiting), line.num_bytes) if line else (0, 0)
        limits = self._limits
        if num_requests >= max_requests:
            raise HoldFull(
                f"{num_requests} requests wait already; the limit is {max_requests} (spec.lifecycle.maxHeldRequests)"
            )
        if num_bytes + held.num_bytes > limits.max_bytes:
            raise HoldFull(f"{_bytes(num_bytes, held)}; the limit is {limits.max_bytes} per model")
        if self._num_requests >= limits.max_total_requests:
            raise HoldFull(
                f"{self._num_requests} requests wait already for all models; the limit is {limits.max_total_requests}"
            )
        if self._num_bytes + held.num_bytes > limits.max_total_bytes:
            raise HoldFull(f"{_bytes(self._num_bytes, held)}; the limit is {limits.max_total_bytes} for all models")

    def _count(self, line: _Line[H], num_requests: int, num_bytes: int) -> None:
        line.num_bytes += num_bytes
        self._num_requests += num_requests
        self._num_bytes += num_bytes


def _group_of(held: Held) -> _Group:
    return _Group(held.want, held.flow.name)


def _load_of(group: OrderedDict[H, None]) -> float:
    return len(group) / next(iter(group)).flow.weight


def _order_of(held: Held) -> tuple[float, int]:
    return held.turn, held.place


def _bytes(num_bytes: int, held: Held) -> str:
    return f"requests of {num_bytes} bytes wait already and this one has {held.num_bytes}"


def _show(line: _Line[H]) -> str:
    return f"{line.terms.regime}: {len(line.waiting)} of {line.num_bytes} bytes"
