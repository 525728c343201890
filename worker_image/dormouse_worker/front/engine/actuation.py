"""Sleep and wake as the front conducts them: who is let in, the two phases, and a preparation that nobody followed up.

    PrepareSleep   nobody new is let in; what runs ends or is ended; the caller learns the request counter
    Sleep          the memory goes (alone it does what PrepareSleep does first)
    PrepareWakeUp  the memory is reserved, or the missing bytes are told
    WakeUp         the memory returns, is verified, and callers are let in again

A caller that prepared and was never heard of again must not keep a worker closed or memory reserved: after
`--prepared-timeout` a preparation is taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.ipc import LEVELS, State
from dormouse_worker.common.lifecycle import describe
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

LIGHTEST = LEVELS[0]


@dataclass(frozen=True, slots=True)
class Order:
    """What a sleep was asked to do; no tags = all."""

    level: int
    tags: tuple[str, ...]
    must_abort: bool  # end what runs instead of waiting for it


class Actuation:
    """Owns the preparation under way, of which there is at most one."""

    def __init__(self, worker: Worker, turns: CommandQueue) -> None:
        self._worker = worker
        self._turns = turns
        self._prepared: asyncio.TimerHandle | None = None  # ends it

    def __repr__(self) -> str:
        return f"Actuation({'prepared' if self._prepared else 'nothing prepared'})"

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for the running ones; return how many are left. Stays draining."""
        if self._worker.board.state in {State.READY, State.DRAINING}:
            self._worker.start_draining()
            await self._wait_until_drained(timeout_s or self._worker.settings.drain_timeout_s)
        return len(self._worker.requests)

    async def prepare_sleep(self, order: Order, request_counter: int | None) -> int:
        """Drain or abort, and stay closed; return the request counter. Raises CallError with everything as before."""
        self._turns.require_open()
        if self._worker.board.state is not State.ASLEEP:
            self._require("PrepareSleep", State.READY, State.DRAINING)
            self._check_counter(request_counter)
            was_prepared = self._forget_preparation()
            await self._close(order, reopens=was_prepared)
            self._expect_second_phase("Sleep", self._worker.reopen)
        return self._worker.requests.num_accepted

    async def sleep(self, order: Order) -> None:
        """Give the memory back. A sleep that fails leaves the worker as it was; hanging up while it drains, too."""
        self._turns.require_open()
        was_prepared = self._forget_preparation()
        if self._worker.board.state is State.ASLEEP:
            await self._turns.run(partial(self._sleep, order))
            return
        self._require("Sleep", State.READY, State.DRAINING)
        reopens = await self._close(order, reopens=was_prepared)
        await self._turns.run(partial(self._sleep_or_reopen, order, reopens=reopens))

    async def prepare_wake_up(self, tags: Sequence[str]) -> int:
        """Reserve; return the missing bytes, 0 = reserved until WakeUp, Sleep or the timeout."""
        self._require("PrepareWakeUp", State.ASLEEP, State.READY)
        command = partial(self._worker.command, "prepare_wake_up", tags=list(tags))
        missing_bytes = int(await self._turns.run(command) or 0)
        if missing_bytes == 0 and self._worker.board.state is State.ASLEEP:
            self._expect_second_phase("WakeUp", self._give_back)
        return missing_bytes

    async def wake_up(self, tags: Sequence[str]) -> None:
        """Wake, or end a draining, or a sleep that waits for it."""
        self._turns.require_open()
        self._forget_preparation()
        self._worker.reopen()
        self._require("WakeUp", State.ASLEEP, State.READY, State.WAKING)
        if self._worker.board.state is not State.READY:
            await self._turns.run(partial(self._worker.command, "wake_up", tags=list(tags)))

    def take_over(self) -> bool:
        """Let nobody in, for whoever goes on from here instead of us; return whether a failure of his reopens."""
        was_prepared = self._forget_preparation()
        return self._worker.start_draining() or was_prepared

    async def _close(self, order: Order, *, reopens: bool) -> bool:
        """Let nobody in any more and wait until nothing runs; return whether a failure from now on reopens.

        It does if this call closed the worker, or (`reopens`) the preparation that it follows. Raises CallError.
        """
        worker = self._worker
        reopens = worker.start_draining() or reopens
        try:
            if order.must_abort:
                await self._turns.run(partial(worker.command, "abort_all"))
            await self._wait_until_drained(self._worker.settings.drain_timeout_s)
            self._require_drained()
        except BaseException:  # hanging up is a cancellation
            if reopens:
                worker.reopen()
            raise
        return reopens

    def _require_drained(self) -> None:
        self._require("Sleep", State.DRAINING)  # somebody may have opened the worker again
        if left := len(self._worker.requests):
            raise precondition(
                f"{left} requests still run after {self._worker.settings.drain_timeout_s:g} s (--drain-timeout); "
                "call again, or with mode ABORT"
            )

    def _check_counter(self, request_counter: int | None) -> None:
        accepted = self._worker.requests.num_accepted
        if request_counter not in {None, accepted}:
            raise precondition(
                f"request_counter is {request_counter}, this worker has accepted {accepted} requests: "
                "one came in the meantime; look again before you sleep"
            )

    async def _sleep(self, order: Order) -> None:
        await self._worker.command("sleep", level=order.level, tags=list(order.tags))

    async def _sleep_or_reopen(self, order: Order, *, reopens: bool) -> None:
        if self._worker.board.state is State.ASLEEP:  # another Sleep was faster
            return
        try:
            await self._sleep(order)
        except CallError:
            if reopens:
                self._worker.reopen()
            raise

    async def _wait_until_drained(self, timeout_s: float) -> None:
        """Return when no request is in flight, the time is over, or somebody opened the worker again."""
        worker = self._worker
        try:
            async with asyncio.timeout(timeout_s):
                await worker.load_changes.until(
                    lambda: len(worker.requests) == 0 or worker.board.state is not State.DRAINING
                )
        except TimeoutError:
            return

    def _expect_second_phase(self, what: str, take_back: Callable[[], object]) -> None:
        def expire() -> None:
            self._prepared = None
            logger.warning(
                "no %s within %g s; its preparation is taken back", what, self._worker.settings.prepared_timeout_s
            )
            take_back()

        self._forget_preparation()
        self._prepared = asyncio.get_running_loop().call_later(self._worker.settings.prepared_timeout_s, expire)

    def _forget_preparation(self) -> bool:
        """Let the preparation under way be; return whether there was one."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.cancel()
        return prepared is not None

    def _give_back(self) -> None:
        """Give back what a prepared wake has reserved: a sleep of what sleeps already does."""
        self._turns.start(self._sleep_again)

    async def _sleep_again(self) -> None:
        engine = self._worker.board.engine
        if engine.state is State.ASLEEP:  # the lightest order: whatever sleeps stays as deep as it is
            await self._sleep(Order(LIGHTEST, engine.sleeping_tags, must_abort=False))

    def _require(self, what: str, *states: State) -> None:
        require(self._worker, what, *states)


def require(worker: Worker, what: str, *states: State) -> None:
    """Raise CallError FAILED_PRECONDITION unless the worker is in one of the states."""
    board = worker.board
    if board.state not in states:
        words = describe(board.state, board.engine.sleep_level)
        raise precondition(f"{what} needs the state {' or '.join(states)}; the worker is {words}")


def precondition(message: str) -> CallError:
    """Return the error of a call that the worker's state does not allow."""
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)
