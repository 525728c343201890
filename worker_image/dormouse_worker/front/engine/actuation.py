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
from collections.abc import Callable
from functools import partial

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.commands import LIGHTEST, AbortAll, PrepareWakeUp, Sleep, WakeUp
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import why_not
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)


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

    async def prepare_sleep(self, request_counter: int | None, *, must_abort: bool) -> int:
        """Drain or abort, and stay closed; return the request counter. Raises CallError with everything as before."""
        self._turns.require_open()
        require(self._worker, "PrepareSleep")
        if self._worker.board.state is not State.ASLEEP:
            self._check_counter(request_counter)
            was_prepared = self._forget_preparation()
            await self._close(must_abort=must_abort, reopens=was_prepared)
            self._expect_second_phase("Sleep", self._worker.reopen)
        return self._worker.requests.num_accepted

    async def sleep(self, command: Sleep, *, must_abort: bool) -> None:
        """Give the memory back. A sleep that fails leaves the worker as it was; hanging up while it drains, too."""
        self._turns.require_open()
        was_prepared = self._forget_preparation()
        require(self._worker, "Sleep")
        if self._worker.board.state is State.ASLEEP:
            await self._turns.run(partial(self._worker.command, command))
            return
        reopens = await self._close(must_abort=must_abort, reopens=was_prepared)
        await self._turns.run(partial(self._sleep_or_reopen, command, reopens=reopens))

    async def prepare_wake_up(self, command: PrepareWakeUp) -> int:
        """Reserve; return the missing bytes, 0 = reserved until WakeUp, Sleep or the timeout."""
        require(self._worker, "PrepareWakeUp")
        missing_bytes = int(await self._turns.run(partial(self._worker.command, command)) or 0)
        if missing_bytes == 0 and self._worker.board.state is State.ASLEEP:
            self._expect_second_phase("WakeUp", self._give_back)
        return missing_bytes

    async def wake_up(self, command: WakeUp) -> None:
        """Wake, or end a draining, or a sleep that waits for it."""
        self._turns.require_open()
        self._forget_preparation()
        self._worker.reopen()
        require(self._worker, "WakeUp")
        if self._worker.board.state is not State.READY:
            await self._turns.run(partial(self._worker.command, command))

    def take_over(self) -> bool:
        """Let nobody in, for whoever goes on from here instead of us; return whether a failure of his reopens."""
        was_prepared = self._forget_preparation()
        return self._worker.start_draining() or was_prepared

    async def _close(self, *, must_abort: bool, reopens: bool) -> bool:
        """Let nobody in any more and wait until nothing runs; return whether a failure from now on reopens.

        It does if this call closed the worker, or (`reopens`) the preparation that it follows. Raises CallError.
        """
        worker = self._worker
        reopens = worker.start_draining() or reopens
        try:
            if must_abort:
                await self._turns.run(partial(worker.command, AbortAll()))
            await self._wait_until_drained(self._worker.settings.drain_timeout_s)
            self._require_drained()
        except BaseException:  # hanging up is a cancellation
            if reopens:
                worker.reopen()
            raise
        return reopens

    def _require_drained(self) -> None:
        if self._worker.board.state is not State.DRAINING:
            raise precondition(f"Sleep needs the state DRAINING; {self._worker.words}")  # somebody opened it
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

    async def _sleep_or_reopen(self, command: Sleep, *, reopens: bool) -> None:
        if self._worker.board.state is State.ASLEEP:  # another Sleep was faster
            return
        try:
            await self._worker.command(command)
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
        if engine.state is State.ASLEEP:
            await self._worker.command(Sleep(LIGHTEST, engine.sleeping_tags))


def require(worker: Worker, call: str) -> None:
    """Raise CallError FAILED_PRECONDITION unless the worker is in a state that allows the call."""
    if why := why_not(call, worker.board.state, worker.board.engine.sleep_level):
        raise precondition(why)


def precondition(message: str) -> CallError:
    """Return the error of a call that the worker's state does not allow."""
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)
