"""Runs orders of pools beside each other, one at a time for each pod, so that what hangs on one slot stops no other.

Owns the orders under way, which replicas refused, and until when a failed order is not repeated. All of it can be lost:
a new operator derives the same orders, and workers take them twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from dormouse_kube.errors import Conflict, KubeError, NotFound
from dormouse_operator.act.pool_effects import Order, PoolEffects
from dormouse_operator.decide.pools.commands import PodCommand, Sleep, WakeUp, goes_on
from dormouse_operator.errors import NotLeading, RequestCameIn, WorkerError, WorkerRefused
from dormouse_operator.model import PoolKey
from dormouse_operator.model.pools import Replica

_LOG = logging.getLogger(__name__)

_AGAIN_S = 0.5  # after an order that failed; it is derived anew, and may be another one by then


class _Outcome(Enum):
    """What became of an order."""

    DONE = auto()
    PUT_OFF = auto()  # it is derived anew: nothing follows from it
    FAILED = auto()  # it should rest before it is repeated


@dataclass(slots=True)
class _Held:
    """What is kept of one pool."""

    running: dict[Replica, tuple[Order, asyncio.Task[None]]] = field(default_factory=dict)
    ended: set[Replica] = field(default_factory=set)  # orders of theirs, since the pool was last looked at
    resting: dict[Replica, tuple[PodCommand, float]] = field(default_factory=dict)  # failed; not again before
    refused: dict[Replica, int] = field(default_factory=dict)  # epoch of the slot at the last refusal


class PoolOrders:
    """The orders under way, by pool and replica."""

    def __init__(
        self,
        effects: PoolEffects,
        *,
        clock: Callable[[], float],
        on_done: Callable[[PoolKey, Replica, float], None],
    ) -> None:
        """Take who acts, a monotonic clock, and who hears that an order ended: look again after so many seconds."""
        self._effects = effects
        self._clock = clock
        self._on_done = on_done
        self._held: dict[PoolKey, _Held] = {}

    def __repr__(self) -> str:
        """Show the counts."""
        return f"PoolOrders({sum(len(held.running) for held in self._held.values())} under way)"

    def look(self, pool: PoolKey) -> Mapping[Replica, int]:
        """Begin to look at a pool; return at which epoch of their slots replicas refused a sleep or a wake."""
        held = self._held.setdefault(pool, _Held())
        held.ended.clear()
        return held.refused

    def begin(self, pool: PoolKey, orders: Collection[tuple[Replica, Order]]) -> None:
        """Begin orders. One that is under way goes on; another one for the same pod takes its place.

        A replica of which an order has ended since the look may be what it was before it: it waits for the next look.
        """
        held = self._held.setdefault(pool, _Held())
        for replica, order in orders:
            if replica not in held.ended and self._must_begin(held, replica, order.command):
                self._start(pool, held, replica, order)

    async def stop(self, pool: PoolKey | None = None) -> None:
        """Give up what is under way, of one pool or of all, and forget."""
        pools = list(self._held) if pool is None else [pool]
        tasks = [task for key in pools for _, task in self._held.pop(key, _Held()).running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _must_begin(self, held: _Held, replica: Replica, command: PodCommand) -> bool:
        running, rests = held.running.get(replica), held.resting.get(replica)
        if running and (goes_on(running[0].command, command) or command == running[0].then):
            return False
        return not (rests and rests[0] == command and self._clock() < rests[1])

    def _start(self, pool: PoolKey, held: _Held, replica: Replica, order: Order) -> None:
        before = held.running.pop(replica, None)
        if before:
            before[1].cancel()
        task = asyncio.create_task(self._run(pool, held, replica, order), name=f"{pool} {replica}")
        held.running[replica] = (order, task)

    async def _run(self, pool: PoolKey, held: _Held, replica: Replica, order: Order) -> None:
        """Carry one order out, and the one that follows from it, and note what became of them."""
        outcome = await self._try(held, replica, order)
        if order.then is not None and outcome is _Outcome.DONE:
            order = replace(order, command=order.then)
            outcome = await self._try(held, replica, order)
        failed = outcome is _Outcome.FAILED
        if held.running.get(replica, (None, None))[1] is not asyncio.current_task():
            return
        del held.running[replica]
        held.ended.add(replica)
        if failed:
            held.resting[replica] = (order.command, self._clock() + _AGAIN_S)
        else:
            held.resting.pop(replica, None)
        self._on_done(pool, replica, _AGAIN_S if failed else 0.0)

    async def _try(self, held: _Held, replica: Replica, order: Order) -> _Outcome:
        """Return what became of an order."""
        try:
            await self._effects.act(order)
        except RequestCameIn as error:
            _LOG.info("%s: the sleep is put off: %s", replica, error)
            return _Outcome.PUT_OFF
        except (Conflict, NotFound, NotLeading) as error:
            _LOG.info("%s: %s: %s", replica, type(order.command).__name__, error)
        except WorkerRefused as error:
            _LOG.warning("%s: %s is refused: %s", replica, type(order.command).__name__, error)
            if isinstance(order.command, Sleep | WakeUp):
                held.refused[replica] = order.command.epoch
        except (WorkerError, KubeError) as error:
            _LOG.warning("%s: %s: %s", replica, type(order.command).__name__, error)
        except Exception:  # noqa: BLE001  # what one order brings about may not stop the others, nor be lost
            _LOG.exception("%s: %s met what nobody foresaw", replica, type(order.command).__name__)
        else:
            return _Outcome.DONE
        return _Outcome.FAILED
