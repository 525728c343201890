"""`dormouse.v1.WorkerControl`: what the operator does to a worker. Decides by the state, acts through the engine."""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from grpc import aio

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_worker.common import commands
from dormouse_worker.common.commands import Command
from dormouse_worker.common.ipc import State
from dormouse_worker.front.api.adapters import read_set, read_wanted, to_adapter, to_adapters
from dormouse_worker.front.api.answers import answered
from dormouse_worker.front.api.grants import read_grant, read_slot_epoch
from dormouse_worker.front.api.orders import must_abort, read_sleep, read_swap, read_tags
from dormouse_worker.front.conduct.adapters import Adapters
from dormouse_worker.front.conduct.health import check_health
from dormouse_worker.front.conduct.refusals import precondition, require, require_level
from dormouse_worker.front.conduct.sleep_conductor import SleepConductor
from dormouse_worker.front.conduct.swap import EngineSwap
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.engine.wire import to_report
from dormouse_worker.front.telemetry.profiling import trace_directory
from dormouse_worker.front.worker import Worker

Context = aio.ServicerContext[Any, Any]

WATCH_INTERVAL_S = 0.02  # at most so often a watcher hears something


class ControlService(rpc.WorkerControlServicer):
    """One worker's control calls: reads the request, checks the epoch, leaves the rest to those who own it."""

    def __init__(
        self, worker: Worker, turns: CommandQueue, conductor: SleepConductor, swap: EngineSwap, adapters: Adapters
    ) -> None:
        self._adapters = adapters
        self._worker = worker
        self._turns = turns
        self._conductor = conductor
        self._swap = swap

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
        ends = {State.FAILED, State.STANDBY}
        await self._worker.changes.until(lambda: board.engine.report is not None or board.state in ends)
        if board.failure is not None:
            raise precondition(f"{board.failure.reason}: {board.failure.message}")
        if board.engine.report is None:
            raise precondition(f"nothing was measured yet, and {self._worker.words}: WakeUp first")
        return to_report(board.engine.report)

    @answered
    async def InitializeCache(self, request: pb.InitializeCacheRequest, context: Context) -> pb.WorkerStatus:
        """Allocate the agreed counts and open."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        self._worker.grants.require("InitializeCache")
        await self._run(commands.InitializeCache(request.num_gpu_blocks, request.num_cpu_blocks))
        self._conductor.reopen()
        return self._worker.status()

    @answered
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Refuse new requests and wait for the running ones; stays draining until WakeUp or Sleep."""
        del context  # hanging up leaves the worker draining
        self._worker.take_epoch(request.epoch)
        return pb.DrainResponse(remaining_requests=await self._conductor.drain(request.timeout_seconds))

    @answered
    async def PrepareSleep(self, request: pb.PrepareSleepRequest, context: Context) -> pb.PrepareSleepResponse:
        """Let nobody in any more and end what runs; Sleep has to follow."""
        del context  # hanging up while it drains opens the worker again
        self._worker.take_epoch(request.epoch)
        counter = request.request_counter if request.HasField("request_counter") else None
        command = read_sleep(request)
        require_level(self._worker, command)
        is_standby = command is None  # what Sleep would refuse is refused before anybody is turned away
        accepted = await self._conductor.prepare_sleep(counter, must_abort=must_abort(request), is_standby=is_standby)
        return pb.PrepareSleepResponse(request_counter=accepted)

    @answered
    async def Sleep(self, request: pb.SleepRequest, context: Context) -> pb.WorkerStatus:
        """Give the memory back, after what PrepareSleep does if nobody called it."""
        del context  # hanging up while it drains cancels the sleep; afterwards it goes on
        self._worker.take_epoch(request.epoch)
        command = read_sleep(request)
        require_level(self._worker, command)
        if command is None:
            await self._conductor.stand_by(must_abort=must_abort(request))
        else:
            await self._conductor.sleep(command, must_abort=must_abort(request))
        return self._worker.status()

    @answered
    async def PrepareWakeUp(self, request: pb.PrepareWakeUpRequest, context: Context) -> pb.PrepareWakeUpResponse:
        """Reserve the memory; WakeUp has to follow."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        command = commands.PrepareWakeUp(read_tags(request.tags))
        return pb.PrepareWakeUpResponse(missing_bytes=await self._conductor.prepare_wake_up(command))

    @answered
    async def WakeUp(self, request: pb.WakeUpRequest, context: Context) -> pb.WorkerStatus:
        """Wake, or end a draining."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        await self._conductor.wake_up(commands.WakeUp(read_tags(request.tags)))
        return self._worker.status()

    @answered
    async def GrantDevice(self, request: pb.GrantDeviceRequest, context: Context) -> pb.WorkerStatus:
        """Let the worker use the device."""
        del context  # it is done at once
        self._worker.take_epoch(request.epoch)
        self._worker.grants.grant(read_grant(request), request.instance)
        return self._worker.status()

    @answered
    async def RevokeDevice(self, request: pb.RevokeDeviceRequest, context: Context) -> pb.WorkerStatus:
        """Take the grant back."""
        del context  # what a prepared wake reserved is given back, whoever hangs up
        self._worker.take_epoch(request.epoch)
        await self._conductor.revoke(read_slot_epoch(request.slot_epoch))
        return self._worker.status()

    @answered
    async def SwapEngine(self, request: pb.SwapEngineRequest, context: Context) -> pb.WorkerStatus:
        """Put an engine with other settings in the place of this one, or leave everything as it was."""
        del context  # the swap runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        await self._swap.run(read_swap(request))
        return self._worker.status()

    @answered
    async def SaveShardedState(
        self, request: pb.SaveShardedStateRequest, context: Context
    ) -> pb.SaveShardedStateResponse:
        """Write this rank's weights where `--load-format sharded_state` finds them."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        await self._run(commands.SaveShardedState(request.directory))
        return pb.SaveShardedStateResponse()

    @answered
    async def ResetPrefixCache(
        self, request: pb.ResetPrefixCacheRequest, context: Context
    ) -> pb.ResetPrefixCacheResponse:
        """Forget every cached prefix; running requests keep what they hold."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        if self._worker.board.state is not State.STANDBY:  # there is no cache, nor anybody to ask
            await self._run(commands.ResetPrefixCache())
        return pb.ResetPrefixCacheResponse()

    @answered
    async def ResetMultimodalCache(
        self, request: pb.ResetMultimodalCacheRequest, context: Context
    ) -> pb.ResetMultimodalCacheResponse:
        """Forget every image and sound that no running request needs, kept ones too."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        if self._worker.board.state is not State.STANDBY:  # nothing is encoded, nor is there anybody to ask
            await self._run(commands.ResetMultimodalCache())
        self._worker.served.forget_images()
        return pb.ResetMultimodalCacheResponse()

    @answered
    async def StartProfile(self, request: pb.StartProfileRequest, context: Context) -> pb.StartProfileResponse:
        """Record every operation of the engine from now on."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        directory = trace_directory(self._worker.settings.profiler_dir, request.directory)
        await self._run(commands.StartProfile(directory))
        return pb.StartProfileResponse()

    @answered
    async def StopProfile(self, request: pb.StopProfileRequest, context: Context) -> pb.StopProfileResponse:
        """Write the trace."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        return pb.StopProfileResponse(path=str(await self._run(commands.StopProfile())))

    @answered
    async def AddLora(self, request: pb.AddLoraRequest, context: Context) -> pb.LoraAdapter:
        """Let a name mean an adapter."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        return to_adapter(await self._adapters.add(read_wanted(request)))

    @answered
    async def RemoveLora(self, request: pb.RemoveLoraRequest, context: Context) -> pb.RemoveLoraResponse:
        """Let a name mean nothing."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        await self._adapters.remove(request.name)
        return pb.RemoveLoraResponse()

    @answered
    async def PinLora(self, request: pb.PinLoraRequest, context: Context) -> pb.LoraAdapter:
        """Let an adapter keep its slot, or no longer."""
        del context  # the command runs to its end, whoever hangs up
        self._worker.take_epoch(request.epoch)
        return to_adapter(await self._adapters.pin(request.name, is_pinned=request.pinned))

    @answered
    async def SetLoras(self, request: pb.SetLorasRequest, context: Context) -> pb.SetLorasResponse:
        """Let there be these adapters and no others."""
        del context  # it answers at once
        self._worker.take_epoch(request.epoch)
        self._adapters.set(read_set(request), request.digest)
        return pb.SetLorasResponse()

    @answered
    async def ListLoras(self, request: pb.ListLorasRequest, context: Context) -> pb.ListLorasResponse:
        """Return the adapters that were asked for."""
        del request, context  # the answer depends on neither
        return to_adapters(self._worker.adapters, self._worker.served.edition.engine)

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
            await self._conductor.drain(request.drain_timeout_seconds)
        finally:
            self._worker.end_wanted.set()
        return pb.ShutdownResponse()

    async def _run(self, command: Command) -> int | str:
        """Have the engine carry out a command in its turn; return its value. Raises CallError."""
        require(self._worker, type(command).__name__)
        return await self._turns.run(partial(self._worker.command, command))


def _without_counts(status: pb.WorkerStatus) -> pb.WorkerStatus:
    for name in ("request_counter", "running_requests", "waiting_requests"):
        status.ClearField(name)
    return status
