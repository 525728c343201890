"""`dormouse.v1.WorkerControl`: what the operator does to a worker. Decides by the state, acts through the engine.

RPCs that a later version fills are not overridden: the generated base answers UNIMPLEMENTED.
"""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import grpc
from grpc import aio

from dormouse_api.status import CallError
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_worker.front.answers import answered
from dormouse_worker.front.health import check_health
from dormouse_worker.front.profiling import trace_directory
from dormouse_worker.front.wire import to_report
from dormouse_worker.front.worker import Worker
from dormouse_worker.ipc import State
from dormouse_worker.lifecycle import describe

Context = aio.ServicerContext[Any, Any]
T = TypeVar("T")

SLEEP_LEVEL = 2  # the only one so far
TAGS = frozenset({"weights", "kv_cache"})
WATCH_INTERVAL_S = 0.02  # at most so often a watcher hears something


class ControlService(rpc.WorkerControlServicer):
    """One worker's control calls. Commands to the engine run one at a time and to their end, whoever hangs up."""

    def __init__(self, worker: Worker, *, drain_timeout_s: float, profiler_dir: str) -> None:
        self._worker = worker
        self._profiler_dir = profiler_dir
        self._drain_timeout_s = drain_timeout_s
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    @answered
    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.WorkerStatus:
        """Return everything that holds now."""
        del request, context  # the status depends on neither
        return self._worker.status()

    async def WatchStatus(self, request: pb.GetStatusRequest, context: Context) -> AsyncIterator[pb.WorkerStatus]:
        """Stream the status; ends when the worker does. Request counts are those at the time of a change."""
        del request, context  # the status depends on neither
        worker = self._worker
        async for _ in worker.changes.stream(lambda: _without_counts(worker.status()), min_interval_s=WATCH_INTERVAL_S):
            yield worker.status()

    @answered
    async def DetermineNumAvailableBlocks(
        self, request: pb.DetermineNumAvailableBlocksRequest, context: Context
    ) -> pb.MemoryReport:
        """Return the report, waiting for it while the model loads."""
        del context  # the deadline cancels us
        self._worker.take_epoch(request.epoch)
        board = self._worker.board
        await self._worker.changes.until(lambda: board.engine.report is not None or board.state is State.FAILED)
        if board.failure is not None:
            raise _precondition(f"{board.failure.reason}: {board.failure.message}")
        assert board.engine.report is not None, "waited for it"
        return to_report(board.engine.report)

    @answered
    async def InitializeCache(self, request: pb.InitializeCacheRequest, context: Context) -> pb.WorkerStatus:
        """Allocate the agreed counts and open."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        self._require("InitializeCache", State.PROFILED, State.READY, State.DRAINING)
        counts = {"num_gpu_blocks": request.num_gpu_blocks, "num_cpu_blocks": request.num_cpu_blocks}
        await self._to_the_end(partial(self._worker.command, "initialize_cache", **counts))
        self._worker.reopen()
        return self._worker.status()

    @answered
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Refuse new requests and wait for the running ones; stays draining until WakeUp or Sleep."""
        del context  # hanging up leaves the worker draining
        self._worker.take_epoch(request.epoch)
        if self._worker.board.state in {State.READY, State.DRAINING}:
            self._worker.start_draining()
            await self._wait_until_drained(request.timeout_seconds or self._drain_timeout_s)
        return pb.DrainResponse(remaining_requests=len(self._worker.requests))

    @answered
    async def Sleep(self, request: pb.SleepRequest, context: Context) -> pb.WorkerStatus:
        """Drain or abort, then give the memory back. A sleep that fails leaves the worker as it was."""
        del context  # hanging up while it drains cancels the sleep; afterwards it goes on
        self._worker.take_epoch(request.epoch)
        _check_sleep(request)
        if self._worker.board.state is State.ASLEEP:
            return self._worker.status()
        self._require("Sleep", State.READY, State.DRAINING)
        began = self._worker.start_draining()
        mode = "abort" if request.mode == pb.DRAIN_MODE_ABORT else "drain"
        try:
            if mode == "drain":
                await self._drain_for_sleep()
        except BaseException:  # hanging up is a cancellation
            if began:
                self._worker.reopen()
            raise
        await self._to_the_end(partial(self._sleep_or_reopen, mode, began=began))
        return self._worker.status()

    @answered
    async def WakeUp(self, request: pb.WakeUpRequest, context: Context) -> pb.WorkerStatus:
        """Wake, or end a draining."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        _check_tags(request.tags)
        self._worker.reopen()
        self._require("WakeUp", State.ASLEEP, State.READY, State.WAKING)
        if self._worker.board.state is not State.READY:
            await self._to_the_end(partial(self._worker.command, "wake_up"))
        return self._worker.status()

    @answered
    async def ResetPrefixCache(
        self, request: pb.ResetPrefixCacheRequest, context: Context
    ) -> pb.ResetPrefixCacheResponse:
        """Forget every cached prefix; running requests keep what they hold."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        await self._to_the_end(partial(self._worker.command, "reset_prefix_cache"))
        return pb.ResetPrefixCacheResponse()

    @answered
    async def StartProfile(self, request: pb.StartProfileRequest, context: Context) -> pb.StartProfileResponse:
        """Record every operation of the engine from now on."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        directory = trace_directory(self._profiler_dir, request.directory)
        self._require("StartProfile", State.PROFILED, State.READY, State.DRAINING)
        await self._to_the_end(partial(self._worker.command, "start_profile", directory=directory))
        return pb.StartProfileResponse()

    @answered
    async def StopProfile(self, request: pb.StopProfileRequest, context: Context) -> pb.StopProfileResponse:
        """Write the trace."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        self._require("StopProfile", State.PROFILED, State.READY, State.DRAINING, State.ASLEEP)
        return pb.StopProfileResponse(path=await self._to_the_end(partial(self._worker.command, "stop_profile")))

    @answered
    async def CheckHealth(self, request: pb.CheckHealthRequest, context: Context) -> pb.CheckHealthResponse:
        """Answer if the engine is alive, its loop comes round and its device computes."""
        del request, context  # the health depends on neither
        return pb.CheckHealthResponse(seconds_since_step=await check_health(self._worker))

    @answered
    async def Shutdown(self, request: pb.ShutdownRequest, context: Context) -> pb.ShutdownResponse:
        """Begin the worker's end and drain; the process ends after the answer."""
        del context  # hanging up does not stop the end
        self._worker.take_epoch(request.epoch)
        self._worker.begin_end()
        try:
            await self._wait_until_drained(request.drain_timeout_seconds or self._drain_timeout_s)
        finally:
            self._worker.end_wanted.set()
        return pb.ShutdownResponse()

    async def _drain_for_sleep(self) -> None:
        """Wait until nothing runs. Raises CallError if the time is over, or if a WakeUp cancelled the sleep."""
        await self._wait_until_drained(self._drain_timeout_s)
        self._require("Sleep", State.DRAINING)
        if left := len(self._worker.requests):
            raise _precondition(
                f"{left} requests still run after {self._drain_timeout_s:g} s (--drain-timeout); "
                "call Sleep again, or with mode ABORT"
            )

    async def _sleep_or_reopen(self, mode: str, *, began: bool) -> None:
        if self._worker.board.state is State.ASLEEP:  # another Sleep was faster
            return
        try:
            await self._worker.command("sleep", level=SLEEP_LEVEL, mode=mode)
        except CallError:
            if began:
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

    async def _to_the_end(self, command: Callable[[], Awaitable[T]]) -> T:
        """Run a command in a task of its own: a caller that hangs up must not leave it half watched."""

        async def in_turn() -> T:
            async with self._turn:
                return await command()

        task = asyncio.create_task(in_turn())
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: nobody may be waiting any more

    def _require(self, what: str, *states: State) -> None:
        board = self._worker.board
        if board.state not in states:
            words = describe(board.state, board.engine.sleep_level)
            raise _precondition(f"{what} needs the state {' or '.join(states)}; the worker is {words}")


def _precondition(message: str) -> CallError:
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)


def _check_sleep(request: pb.SleepRequest) -> None:
    if request.level != SLEEP_LEVEL:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"level is {request.level}; allowed: {SLEEP_LEVEL}")
    _check_tags(request.tags)


def _check_tags(tags: Any) -> None:
    """Everything sleeps and wakes together so far. Raises CallError INVALID_ARGUMENT for a part of it."""
    if set(tags) not in (set(), TAGS):
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT, f"tags is {sorted(tags)}; allowed: none, or all of {sorted(TAGS)}"
        )


def _without_counts(status: pb.WorkerStatus) -> pb.WorkerStatus:
    for name in ("request_counter", "running_requests", "waiting_requests"):
        status.ClearField(name)
    return status
