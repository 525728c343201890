"""Whose text is worked on next: callers take turns, and a long text never holds a short one. Knows no tokenizer.

Two threads, and one of them is never given to a long text. Within short and within long ones the callers take turns,
one text each; a caller who leaves takes what waits with it. What runs is not cut: it ends by itself, within a second or
two for the longest message there is. A tiny text takes no thread and no turn: it is worked on at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Container
from concurrent.futures import Executor
from typing import Generic, TypeVar

TINY_BYTES = 512  # tokenized in less than the way to a thread and back takes beside streams
LONG_BYTES = 32 << 10  # so much is tokenized in some 50 ms
NUM_THREADS = 2  # of which a long text takes one at most
NOBODY = ""  # the caller of work that no call waits for

T = TypeVar("T")


class Rota(Generic[T]):
    """Items of several callers, taken in turns: one of each, in the order in which the callers came."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()

    def __repr__(self) -> str:
        return f"Rota({len(self)} of {len(self._waiting)} callers)"

    def __len__(self) -> int:
        """Return how many items wait."""
        return sum(map(len, self._waiting.values()))

    def put(self, caller: str, item: T) -> None:
        """Add an item behind the caller's others."""
        self._waiting.setdefault(caller, deque()).append(item)

    def take(self, skipped: Container[str] = ()) -> T | None:
        """Return whose turn it is, None if nobody waits but callers that are skipped.

        The caller's next item waits for one of each other's first.
        """
        caller = next((caller for caller in self._waiting if caller not in skipped), None)
        if caller is None:
            return None
        items = self._waiting.pop(caller)
        item = items.popleft()
        if items:
            self._waiting[caller] = items
        return item

    def drop(self, caller: str, item: T) -> None:
        """Forget an item that nobody waits for any more; nothing happens if it was taken."""
        items = self._waiting.get(caller, deque())
        with contextlib.suppress(ValueError):
            items.remove(item)
        if not items:
            self._waiting.pop(caller, None)


Turn = asyncio.Future[None]


class TextWork:
    """Owns who waits for the threads that tokenize."""

    def __init__(self, threads: Executor) -> None:
        """`threads` runs NUM_THREADS at once."""
        self._threads = threads
        self._short: Rota[Turn] = Rota()
        self._long: Rota[Turn] = Rota()
        self._num_short = self._num_long = 0  # that run, or were told to

    def __repr__(self) -> str:
        return f"TextWork({self._num_short} short, {self._num_long} long; waiting: {self._short!r}, {self._long!r})"

    async def run(self, work: Callable[[], T], *, caller: str = NOBODY, num_bytes: int = 0) -> T:
        """Return what the work returns, done in a thread when its turn has come; raises what it raises.

        `num_bytes` of text, 0 = nobody counted; what has few is done here.
        """
        if 0 < num_bytes <= TINY_BYTES:
            return work()
        is_long = num_bytes > LONG_BYTES
        await self._turn(caller, is_long=is_long)
        loop = asyncio.get_running_loop()
        running = self._threads.submit(work)

        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(self._release, is_long)

        running.add_done_callback(ended)  # of the thread: who stopped waiting has not stopped it
        return await asyncio.wrap_future(running)

    async def _turn(self, caller: str, *, is_long: bool) -> None:
        """Wait for the turn; it has to be released."""
        turn: Turn = asyncio.get_running_loop().create_future()
        rota = self._long if is_long else self._short
        rota.put(caller, turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            rota.drop(caller, turn)
            if turn.done() and not turn.cancelled():  # given in the same moment
                self._release(is_long)
            raise

    def _release(self, is_long: bool) -> None:  # noqa: FBT001  called back by position
        self._num_long -= is_long
        self._num_short -= not is_long
        self._give()

    def _give(self) -> None:
        """Give turns while there is a thread for them; short ones first."""
        while self._num_short + self._num_long < NUM_THREADS and (turn := _next(self._short)) is not None:
            self._num_short += 1
            turn.set_result(None)
        if self._num_long == 0 and self._num_short < NUM_THREADS and (turn := _next(self._long)) is not None:
            self._num_long += 1
            turn.set_result(None)


def _next(rota: Rota[Turn]) -> Turn | None:
    """Return whose turn it is; who has just left is passed over."""
    while (turn := rota.take()) is not None and turn.done():
        pass
    return turn
