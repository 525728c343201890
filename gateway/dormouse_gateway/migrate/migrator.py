"""A call's way from worker to worker: asked again elsewhere before it began, continued elsewhere after.

Knows neither channels nor endpoints' counts: an `Attempt` sends the call to one worker. A client of a call that moved
gets every message once and in order, or one status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

import grpc

from dormouse_api.image_wire import excess
from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.names import DECODE, PREFILL
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.call import Attempt, Call, Constraints, Write
from dormouse_gateway.errors import WorkerFailure, WorkerStopped
from dormouse_gateway.migrate import hearing, progress
from dormouse_gateway.migrate.evictions import Evictions
from dormouse_gateway.migrate.history import ByteBudget, History
from dormouse_gateway.migrate.kv_source import SourceOf
from dormouse_gateway.migrate.progress import Choice, Gap, Progress, Splice

_LOG = logging.getLogger(__name__)
_PREFILL_BYTES = 16 << 10  # of what a worker says that only computes the prompt, about: kept in any case


class Outcome(StrEnum):
    """How the move of a stream went."""

    DONE = "done"  # the client has everything
    HANDED_OVER = "handed_over"  # the same, as planned: one worker computed the prompt, another one said the rest
    NOBODY = "nobody"  # no other worker that runs the same
    TOO_LARGE = "too_large"  # more was said than is kept, or than a request may hold
    LIMIT = "limit"  # moved too often
    REFUSED = "refused"  # a worker did not take the rest
    BROKEN = "broken"  # messages do not follow each other
    FAILED = "failed"  # the request itself failed there, or its deadline passed
    CANCELLED = "cancelled"  # the client went away


@dataclass(frozen=True, slots=True)
class MovingLimits:
    """How much is kept and done so that calls can move."""

    max_moves: int = 3  # of one call; once it has begun, of each choice
    stream_bytes: int = 4 << 20
    total_bytes: int = 64 << 20


@dataclass(eq=False)
class _Stuck(Exception):
    """A stream cannot go on."""

    outcome: Outcome
    failure: WorkerFailure  # of the worker that had it
    why: str


@dataclass(frozen=True, slots=True)
class _Move:
    """A stream that goes on elsewhere."""

    call: Call
    write: Write
    attempt: Attempt
    progress: Progress
    source_of: SourceOf
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # choices go on apart, and have one client


class Migrator:
    """Sends calls on their ways. Owns the room for what must be kept for that."""

    def __init__(
        self,
        limits: MovingLimits,
        evictions: Evictions,
        *,
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str], None] = lambda _: None,
        source_of: SourceOf = lambda _: None,
    ) -> None:
        """Take the limits, who knows when workers must go, the clock of deadlines, and who counts outcomes.

        `source_of` says where the blocks of a worker's streams may be found.
        """
        self.room = ByteBudget(total_bytes=limits.total_bytes, stream_bytes=limits.stream_bytes)
        self.evictions = evictions
        self.clock = clock
        self._max_moves = limits.max_moves
        self._count = count
        self._source_of = source_of

    def __repr__(self) -> str:
        """Show the room."""
        return f"Migrator({self.room!r})"

    async def go(self, call: Call, write: Write, attempt: Attempt) -> None:
        """See the call through. Raises CallError if nobody can take it, WorkerFailure if no worker got it done."""
        with History(self.room) as history:
            call = self._planned(call, history)
            failure = await self._begin(call, _until_stopped(call, write, history), attempt, history)
            if failure is None:
                return
            if not history.num_messages or not failure.is_break or not _may_move(call):
                raise failure
            if call.method.request is pb.TranscribeRequest:
                await self._hear_on(call, write, attempt, failure, history)
                return
            await self._go_on(call, write, attempt, history, failure)

    def _planned(self, call: Call, history: History) -> Call:
        """Return the call as it goes: whole to one worker where there is no room for what two of them need."""
        if call.demand.role != PREFILL or history.reserve(_PREFILL_BYTES):
            return call
        return replace(call, demand=replace(call.demand, role=DECODE))

    async def _begin(self, call: Call, write: Write, attempt: Attempt, history: History) -> WorkerFailure | None:
        """Ask one worker after the other until one has begun; where there is no other, the last failure stands."""
        where = Constraints(may_leave=lambda: _may_move(call) and not history.is_cut and self._max_moves > 0)
        failure = await attempt(call, write, where)
        for _ in range(self._max_moves):
            if failure is None or history.num_messages or not failure.may_go_elsewhere:
                break
            if self.clock() >= call.deadline:
                break
            _LOG.warning("%s; trying another", failure)
            where = where.after(failure)
            try:
                failure = await attempt(call, write, where)
            except CallError:
                break
        return failure

    async def _hear_on(
        self, call: Call, write: Write, attempt: Attempt, failure: WorkerFailure, history: History
    ) -> None:
        """Have other workers hear the rest, and count how that went. Raises WorkerFailure."""
        outcome, heard = Outcome.CANCELLED, hearing.Heard()
        try:
            if history.is_cut or not failure.endpoint.revision:
                raise replace(failure, then="more was said than is kept, or its revision is not known")
            for raw in history.take_messages():
                heard.take(raw)
            await self._hear_rest(call, hearing.Joined(heard, write), attempt, failure)
            outcome = Outcome.DONE
        except WorkerFailure:
            outcome = Outcome.FAILED
            raise
        finally:
            self._count(outcome)

    async def _hear_rest(self, call: Call, joined: hearing.Joined, attempt: Attempt, failure: WorkerFailure) -> None:
        """Ask one worker after the other for what is not heard yet. Raises WorkerFailure."""
        where = Constraints(like=failure.endpoint)
        for num_left in reversed(range(self._max_moves)):
            if joined.heard.is_done:
                return
            _LOG.warning("%s; hearing on elsewhere from frame %d", failure, joined.heard.next_frame)
            where = replace(where.after(failure), may_leave=partial(bool, num_left))
            rest = replace(call, body=hearing.resumed(call.body, joined.heard), wait=call.wait.rest(len(call.body)))
            try:
                again = await attempt(rest, joined.write, where)
            except CallError as error:
                raise replace(failure, then=f"no other worker that runs the same can go on: {error.message}") from error
            finally:
                call.wait.add(rest.wait)
            if again is None:
                return
            if not again.may_go_on_elsewhere:
                raise again
            failure = again
        raise replace(failure, then=f"it moved {self._max_moves} times already")

    async def _go_on(
        self, call: Call, write: Write, attempt: Attempt, history: History, failure: WorkerFailure
    ) -> None:
        """Continue a stream that has begun, and count how that went. Raises WorkerFailure."""
        outcome = Outcome.CANCELLED
        try:
            told = _progress(call, history, failure, self.room.stream_bytes)
            await self._move(_Move(call, write, attempt, told, self._source_of), failure)
            outcome = Outcome.DONE if told.has_moved else Outcome.HANDED_OVER
        except _Stuck as stuck:
            outcome = stuck.outcome
            raise replace(stuck.failure, then=stuck.why) from stuck
        except WorkerFailure:
            outcome = Outcome.FAILED
            raise
        finally:
            self._count(outcome)

    async def _move(self, move: _Move, failure: WorkerFailure) -> None:
        """Continue all unfinished choices side by side. Raises what the first one raised that could not end."""
        if move.progress.unfinished and move.progress.has_moved:
            _LOG.warning("%s; going on elsewhere: %r", failure, move.progress)
        try:
            async with asyncio.TaskGroup() as tasks:
                for choice in move.progress.unfinished:
                    tasks.create_task(self._finish(move, choice, failure))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _finish(self, move: _Move, choice: Choice, failure: WorkerFailure) -> None:
        """Continue one choice until it has ended. Raises _Stuck, WorkerFailure."""
        where, has_moved = Constraints(like=failure.endpoint), move.progress.has_moved
        for num_left in reversed(range(self._max_moves + (not has_moved))):
            where = replace(where.after(failure) if has_moved else where, may_leave=partial(bool, num_left))
            outcome = await _continue(move, choice, where, failure)
            if choice.is_finished:
                return
            if outcome is None:
                raise _Stuck(Outcome.BROKEN, failure, "the worker that went on ended without a last message")
            if outcome.code is grpc.StatusCode.INVALID_ARGUMENT:
                raise _Stuck(Outcome.REFUSED, failure, f"the next worker did not take the rest: {outcome.message}")
            if not outcome.may_go_on_elsewhere:
                raise outcome
            failure, has_moved = outcome, True
            move.progress.has_moved = True
            _LOG.warning("%s; choice %d goes on elsewhere", failure, choice.index)
        raise _Stuck(Outcome.LIMIT, failure, f"it moved {self._max_moves} times already")


async def _continue(move: _Move, choice: Choice, where: Constraints, failure: WorkerFailure) -> WorkerFailure | None:
    """Have one more worker continue the choice; return how that one failed. Raises _Stuck, WorkerFailure."""
    body = progress.resumed(move.call.body, choice, move.progress.adapter_digest, move.source_of(failure.endpoint))
    if excess(pb.GenerateRequest, body):
        raise _Stuck(Outcome.TOO_LARGE, failure, f"prompt and output together exceed {MAX_MESSAGE_BYTES} bytes")
    demand, splice = move.call.demand.rest(len(choice.token_ids)), Splice(move.progress, choice)
    rest = replace(move.call, body=body, demand=demand, wait=move.call.wait.rest(len(body)))

    async def join(raw: bytes) -> None:
        async with move.lock:
            await move.write(splice.join(raw))

    try:
        return await move.attempt(rest, _until_stopped(move.call, join), where)
    except CallError as error:
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise replace(failure, code=error.code, message=error.message, trailers=()) from error
        why = f"no other worker that runs the same can go on: {error.message}"
        raise _Stuck(Outcome.NOBODY, failure, why) from error
    except Gap as gap:
        raise _Stuck(Outcome.BROKEN, failure, str(gap)) from gap
    finally:
        move.call.wait.add(rest.wait)


def _progress(call: Call, history: History, failure: WorkerFailure, stream_bytes: int) -> Progress:
    """Return how far the stream is. Raises _Stuck if it is not known, or nobody could go on from there."""
    if history.is_cut and progress.is_end(history.last):
        return Progress(0)
    if history.is_cut:
        why = f"more was said than is kept: at most {stream_bytes} bytes of a stream, while there is room"
        raise _Stuck(Outcome.TOO_LARGE, failure, why)
    if not failure.endpoint.revision:
        raise _Stuck(Outcome.NOBODY, failure, "its revision is not known")
    try:
        told = progress.read(call.body, history.take_messages())
    except Gap as gap:
        raise _Stuck(Outcome.BROKEN, failure, str(gap)) from gap
    if history.ending and call.demand.role == failure.endpoint.role == PREFILL:
        told.prefill, told.has_moved = pb.GenerateResponse.FromString(history.ending), False
    return told


def _until_stopped(call: Call, write: Write, history: History | None = None) -> Write:
    """Return a `write` that also keeps what the client took.

    It does not pass on that a worker gave a choice up: that one can be continued.
    """
    is_generate = _is_generate(call)

    async def pass_on(raw: bytes) -> None:
        if is_generate and progress.is_abort(raw):
            if history:
                history.ending = raw
            raise WorkerStopped
        await write(raw)
        if history:
            history.add(raw)

    return pass_on


def _may_move(call: Call) -> bool:
    return call.method.request in {pb.GenerateRequest, pb.TranscribeRequest}


def _is_generate(call: Call) -> bool:
    return call.method.request is pb.GenerateRequest
