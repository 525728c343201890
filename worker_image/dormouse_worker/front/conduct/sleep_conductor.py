"""Sleep and wake as the front conducts them: who is let in, the two phases, and a preparation that nobody followed up.

    PrepareSleep   nobody new is let in (`LateDoor`: but what was on its way, unless what runs is to be ended); what
                   runs ends or is ended; the caller learns the request counter
    Sleep          the memory goes (alone it does what PrepareSleep does first)
    PrepareWakeUp  the memory is reserved, or the missing bytes are told
    WakeUp         the memory returns, is verified, and callers are let in again

Level 3 goes to STANDBY, and a wake from there starts an engine: `standby` does that. In a pool, taking memory needs a
grant: `grants` knows of it.

A caller that prepared and was never heard of again must not keep a worker closed or memory reserved: after
`--prepared-timeout` a preparation is taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from dormouse_api.status import CallError
from dormouse_worker.common.commands import LIGHTEST, TAGS, AbortAll, PrepareWakeUp, Sleep, WakeUp
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import RISING
from dormouse_worker.front.conduct.refusals import precondition, require
from dormouse_worker.front.conduct.standby import Standby
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

ABORT_GRACE_S = 5.0  # what an engine gets to say how its requests ended, before level 3 ends it
_OPEN = frozenset({State.READY, State.DRAINING})


class SleepConductor:
    """Owns the preparation under way, of which there is at most one, and whether the engine was told to sleep."""

    def __init__(self, worker: Worker, turns: CommandQueue) -> None:
        self._worker = worker
        self._turns = turns
        self._standby = Standby(worker, turns)
        self._prepared: asyncio.TimerHandle | None = None  # ends it
        self._falls_asleep = False  # the engine was told; nobody is let in until it has answered

    def __repr__(self) -> str:
        return f"SleepConductor({'prepared' if self._prepared else 'nothing prepared'})"

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for the running ones; return how many are left. Stays draining.

        While some may still come from within the pod, there is one at least.
        """
        if self._worker.board.state in _OPEN:
            self._worker.start_draining(takes_late=True)
            await self._wait_until_drained(timeout_s or self._worker.settings.drain_timeout_s)
        return len(self._worker.requests) or int(not self._worker.is_idle)

    async def prepare_sleep(self, request_counter: int | None, *, must_abort: bool, is_standby: bool = False) -> int:
        """Drain or abort, and stay closed; return the request counter. Raises CallError with everything as before."""
        self._turns.require_open()
        with self._worker.grants.noting_refusals():
            self._standby.require_possible() if is_standby else require(self._worker, "PrepareSleep")
        if self._worker.board.state in _OPEN:
            self._check_counter(request_counter)
            was_prepared = self._forget_preparation()
            await self._close(must_abort=must_abort, reopens=was_prepared)
            self._expect_second_phase("Sleep", self.reopen)
        return self._worker.requests.num_accepted

    async def sleep(self, command: Sleep, *, must_abort: bool) -> None:
        """Give the memory back. A sleep that fails leaves the worker as it was; hanging up while it drains, too."""
        self._turns.require_open()
        was_prepared = self._forget_preparation()
        with self._worker.grants.noting_refusals():
            require(self._worker, "Sleep")
        if self._worker.board.state is State.STANDBY:  # deeper than any
            return
        act: Callable[[], Awaitable[object]] = partial(self._worker.command, command)
        if self._worker.board.state is not State.ASLEEP:
            reopens = await self._close(must_abort=must_abort, reopens=was_prepared)
            act = partial(self._sleep_or_reopen, command, reopens=reopens)
        with self._worker.grants.noting_refusals():
            await self._turns.run(act)

    async def stand_by(self, *, must_abort: bool) -> None:
        """End the engine process, in any state. Refused while requests run, else nothing keeps it from its end."""
        if await self._standby.join():
            return
        self._turns.require_open()
        with self._worker.grants.noting_refusals():
            self._standby.require_possible()
        was_prepared = self._forget_preparation()
        if self._worker.board.state in _OPEN:
            await self._empty(must_abort=must_abort, reopens=was_prepared)
        await self._standby.enter()

    async def prepare_wake_up(self, command: PrepareWakeUp) -> int:
        """Reserve; return the missing bytes, 0 = reserved until WakeUp, Sleep or the timeout."""
        worker = self._worker
        with worker.grants.noting_refusals():
            worker.grants.require("PrepareWakeUp")
            missing_bytes = 0
            if worker.board.state not in {State.STANDBY, *RISING}:  # there it takes what it finds free
                require(worker, "PrepareWakeUp")
                missing_bytes = int(await self._turns.run(partial(self._worker.command, command)) or 0)
        worker.grants.note_missing(missing_bytes)
        if missing_bytes == 0 and worker.board.state is State.ASLEEP:
            self._expect_second_phase("WakeUp", self._give_back)
        return missing_bytes

    async def wake_up(self, command: WakeUp) -> None:
        """Wake, or end a draining, or a sleep that waits for it. Where an engine has to start, that begins only."""
        self._turns.require_open()
        with self._worker.grants.noting_refusals():
            self._worker.grants.require("WakeUp")
            await self._wake_up(command)
        self._worker.grants.note_missing(0)

    async def revoke(self, slot_epoch: int) -> None:
        """Take the grant back, and before that what a prepared wake has reserved under it. Raises CallError."""
        worker = self._worker
        worker.grants.check_revoke(slot_epoch, worker.board.engine)
        if self._forget_preparation() and worker.board.state is State.ASLEEP:
            await self._turns.run(self._sleep_again)
        self._turns.require_none("RevokeDevice")
        worker.grants.revoke(slot_epoch, worker.board.engine)

    async def _wake_up(self, command: WakeUp) -> None:
        worker = self._worker
        self._forget_preparation()
        if worker.board.state is State.STANDBY:
            if command.tags != TAGS:
                raise precondition(f"tags is {list(command.tags)}; in standby nothing wakes apart: leave them empty")
            self._standby.leave()
        if worker.board.state in RISING:
            return
        self.reopen()
        if not self._falls_asleep:
            require(worker, "WakeUp")
        if worker.board.state is not State.READY:
            await self._turns.run(partial(self._wake_unless_ready, command))

    def reopen(self) -> None:
        """Let callers in again, unless the engine was told to sleep."""
        if not self._falls_asleep:
            self._worker.reopen()

    def take_over(self) -> bool:
        """Let nobody in, for whoever goes on from here instead of us; return whether a failure of his reopens."""
        was_prepared = self._forget_preparation()
        return self._worker.start_draining() or was_prepared

    async def _empty(self, *, must_abort: bool, reopens: bool) -> None:
        """Close, though the engine may hang or die meanwhile: then what runs is cut off, if that was asked for."""
        grace_s = min(ABORT_GRACE_S, self._worker.settings.drain_timeout_s) if must_abort else None
        try:
            async with asyncio.timeout(grace_s):
                await self._close(must_abort=must_abort, reopens=reopens)
        except CallError:
            if self._worker.board.state in _OPEN:
                raise
        except TimeoutError:
            self._worker.start_draining()
            self._worker.requests.fail_all("the worker goes to standby, and its engine does not answer")

    async def _close(self, *, must_abort: bool, reopens: bool) -> bool:
        """Let nobody in any more and wait until nothing runs; return whether a failure from now on reopens.

        It does if this call closed the worker, or (`reopens`) the preparation that it follows. Raises CallError.
        What was on its way to the pod comes in and ends before, as in a draining; not where requests are ended.
        """
        worker = self._worker
        reopens = worker.start_draining(takes_late=not must_abort) or reopens
        try:
            if must_abort:
                await self._turns.run(partial(worker.command, AbortAll()))
            await self._wait_until_drained(self._worker.settings.drain_timeout_s)
            worker.late_door.shut()
            self._require_drained()
        except BaseException:  # hanging up is a cancellation
            if reopens:
                self.reopen()
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
            self._require_drained()  # again: it waited for its turn
            self._falls_asleep = True
            await self._worker.command(command)
        except CallError:
            if reopens:
                self._worker.reopen()
            raise
        finally:
            self._falls_asleep = False

    async def _wake_unless_ready(self, command: WakeUp) -> None:
        """Wake, unless the sleep that it waited for has failed."""
        if self._worker.board.state is not State.READY:
            await self._worker.command(command)

    async def _wait_until_drained(self, timeout_s: float) -> None:
        """Return when no request is in flight, the time is over, or somebody opened the worker again."""
        worker = self._worker
        try:
            async with asyncio.timeout(timeout_s):
                await worker.load_changes.until(lambda: worker.is_idle or worker.board.state is not State.DRAINING)
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
