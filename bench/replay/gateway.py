"""The gateway of a replay: holds calls, sends them to whoever serves, and tells the operator what it knows.

As the real one: that somebody waits is told at once, everything else twice a second at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bench.pools_trace import Call
from bench.pools_world import HOLD_S, PREFILL_S, Job, key_of
from dormouse_operator.observe.gateways import Told
from dormouse_operator.testing.gateways import FakeGateways
from dormouse_operator.testing.pooled import PooledWorker

ADDRESS = "a:1"
INTERVAL_S = 0.5  # between two updates


@dataclass(slots=True)
class Waits:
    """What became of the calls."""

    waits_s: list[float] = field(default_factory=list)  # until the first token, of all that got one
    lost: int = 0
    parked: int = 0


class Gateway:
    """Everything that is called, and where it runs."""

    def __init__(
        self, num_models: int, find: Callable[[int], PooledWorker | None], note_end: Callable[[PooledWorker], None]
    ) -> None:
        """Take who tells where a model is served now, and who hears that a request ended."""
        self._loop = asyncio.get_running_loop()
        self._find, self._note_end = find, note_end
        self.told = FakeGateways(self._loop.time, found={ADDRESS})
        self.waits = Waits()
        self._held: list[list[Job]] = [[] for _ in range(num_models)]
        self._running: dict[Job, PooledWorker] = {}
        self._asked_s: list[float | None] = [None] * num_models
        self._news: set[int] = set(range(num_models))
        self._is_due = False
        self.all_ended = asyncio.Event()  # of as many calls as are awaited
        self.awaited = 0

    def __repr__(self) -> str:
        return f"Gateway({sum(map(len, self._held))} held, {len(self._running)} running)"

    @property
    def is_heard(self) -> bool:
        """Return whether the operator listens."""
        return ADDRESS in self.told.listeners

    def arrive(self, call: Call) -> None:
        """Take a call in."""
        self._asked_s[call.model] = self._loop.time()
        self._hold(Job(call, call.work_s, self._loop.time()))

    def flow(self, number: int) -> None:
        """Send what is held to whoever serves."""
        worker = self._find(number)
        if worker is None or not self._held[number]:
            return
        held, self._held[number] = self._held[number], []
        for job in held:
            self._serve(job, worker)
        self._note(number)

    def park(self, worker: PooledWorker) -> None:
        """Hold what runs on a worker that ends its requests; it goes on later."""
        for job in [job for job, where in self._running.items() if where is worker]:
            del self._running[job]
            self.waits.parked += 1
            job.left_s -= self._loop.time() - job.served_s
            self._hold(job)

    def _serve(self, job: Job, worker: PooledWorker) -> None:
        if job.turn == 0:
            self.waits.waits_s.append(self._loop.time() - job.call.at_s + PREFILL_S)
        job.turn += 1
        job.served_s = self._loop.time()
        self._running[job] = worker
        worker.running_requests += 1
        worker.request_counter += 1
        self._loop.call_later(max(0.0, job.left_s), partial(self._end, job, job.turn))

    def _end(self, job: Job, turn: int) -> None:
        if job.turn != turn or job not in self._running:
            return
        worker = self._running.pop(job)
        worker.running_requests -= 1
        self._asked_s[job.call.model] = self._loop.time()
        self._note(job.call.model)
        self._note_end(worker)
        self._count_down()

    def _hold(self, job: Job) -> None:
        number = job.call.model
        job.held_s = self._loop.time()
        is_first = not self._held[number]
        self._held[number].append(job)
        self.flow(number)
        if job in self._held[number]:
            self._note(number, is_pressing=is_first)
            self._loop.call_later(HOLD_S, partial(self._lose, job, job.turn))
        else:
            self._note(number)

    def _lose(self, job: Job, turn: int) -> None:
        if job.turn == turn and job in self._held[job.call.model]:
            self._held[job.call.model].remove(job)
            self.waits.lost += 1
            self._count_down()

    def _count_down(self) -> None:
        self.awaited -= 1
        if not self.awaited:
            self.all_ended.set()

    def _note(self, number: int, *, is_pressing: bool = False) -> None:
        self._news.add(number)
        if is_pressing:
            self.tell()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_later(INTERVAL_S, self.tell)

    def tell(self) -> None:
        """Tell the operator what is new."""
        self._is_due = False
        if not self.is_heard or not self._news:
            return
        running = [0] * len(self._held)
        for job in self._running:
            running[job.call.model] += 1
        changed = {
            key_of(number): self.told.report(
                held=len(self._held[number]),
                in_flight=len(self._held[number]) + running[number],
                running=running[number],
                last_request_s=self._asked_s[number],
                known_since_s=0.0,
                awake_workers=int(self._find(number) is not None),
            )
            for number in self._news
        }
        self._news.clear()
        self.told.listeners[ADDRESS].put_nowait(Told(changed, (), is_complete=True))
