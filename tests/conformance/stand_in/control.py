"""The operator's door of a stand-in worker."""

# ruff: noqa: ARG002, N802  the methods are those of the .proto file
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import grpc

from dormouse_api.capabilities import Capability
from dormouse_api.names import Role
from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc

from .worker import (
    ASLEEP,
    BLOCK_SIZE,
    BLOCKS,
    DRAINING,
    INVALID,
    LOADING,
    MODEL_LEN,
    PROFILED,
    READY,
    STANDBY,
    STARTING,
    TAGS,
    UNMET,
    Worker,
    follow,
)


def command(needs_epoch: bool = True) -> Callable[[Any], Any]:
    """Check role and epoch, and turn errors into statuses."""

    def decorate(method: Any) -> Any:
        def answer(self: Control, request: Any, context: Any) -> Any:
            worker = self.worker
            if worker.role_of(context) is not Role.OPERATOR:
                raise CallError(grpc.StatusCode.PERMISSION_DENIED, "an operator's ticket is needed")
            with worker.changed:
                if needs_epoch:
                    worker.take_epoch(request.epoch)
                return method(self, request) or worker.status()

        @wraps(method)
        def checked(self: Control, request: Any, context: Any) -> Any:
            try:
                return answer(self, request, context)
            except CallError as error:
                context.abort_with_status(to_grpc_status(error))

        return checked

    return decorate


class Control(control_rpc.WorkerControlServicer):
    """`dormouse.v1.WorkerControl`, as far as the specification speaks of it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @command(needs_epoch=False)
    def GetStatus(self, request: Any) -> control.WorkerStatus:
        return self.worker.status()

    def WatchStatus(self, request: Any, context: Any) -> Iterator[control.WorkerStatus]:
        worker = self.worker
        if worker.role_of(context) is not Role.OPERATOR:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "an operator's ticket is needed")
        yield from follow(worker, lambda: worker.state, worker.status, context)

    @command()
    def DetermineNumAvailableBlocks(self, request: Any) -> control.MemoryReport:
        self.worker.wait_for(lambda: self.worker.state not in {STARTING, LOADING})
        return self.worker.report()

    @command()
    def InitializeCache(self, request: Any) -> None:
        worker, count = self.worker, request.num_gpu_blocks
        worker.require(PROFILED, READY, DRAINING)
        if count > BLOCKS:
            raise CallError(INVALID, f"num_gpu_blocks is {count}; {BLOCKS} were reported")
        if count == 0:
            raise CallError(INVALID, "num_gpu_blocks is 0")
        if count * BLOCK_SIZE < MODEL_LEN:
            raise CallError(INVALID, f"num_gpu_blocks is {count}: too few for {MODEL_LEN} tokens")
        if worker.running and count != worker.allocated:
            raise CallError(UNMET, f"{len(worker.running)} requests are unfinished")
        worker.agreed = worker.allocated = count
        worker.become(READY)

    @command()
    def Drain(self, request: Any) -> control.DrainResponse:
        self.worker.close_doors()
        self.worker.wait_for(lambda: not self.worker.running, request.timeout_seconds or 30.0)
        return control.DrainResponse(remaining_requests=len(self.worker.running))

    @command()
    def PrepareSleep(self, request: Any) -> control.PrepareSleepResponse:
        worker = self.worker
        check_sleep(worker, request)
        worker.require(READY, DRAINING, ASLEEP, STANDBY)
        if request.HasField("request_counter") and request.request_counter != worker.accepted:
            raise CallError(UNMET, f"request_counter is {request.request_counter}, {worker.accepted} were accepted")
        worker.close_doors()
        worker.end_running(request.mode)
        return control.PrepareSleepResponse(request_counter=worker.accepted)

    @command()
    def Sleep(self, request: Any) -> None:
        worker = self.worker
        check_sleep(worker, request)
        worker.close_doors()
        worker.end_running(request.mode)
        if request.level == 3:
            worker.allocated, worker.level = 0, 3
            worker.become(STANDBY)
            return
        worker.require(DRAINING, ASLEEP, STANDBY)
        if worker.state == DRAINING:
            worker.allocated, worker.level = 0, request.level
            worker.become(ASLEEP)

    @command()
    def PrepareWakeUp(self, request: Any) -> control.PrepareWakeUpResponse:
        self.worker.require(ASLEEP, READY, STANDBY)
        return control.PrepareWakeUpResponse()

    @command()
    def WakeUp(self, request: Any) -> None:
        worker = self.worker
        worker.require(ASLEEP, READY, DRAINING, STANDBY)
        if worker.state == STANDBY:
            worker.level = 0
            worker.load()
        elif worker.state == ASLEEP:
            worker.allocated, worker.level = worker.agreed, 0
            worker.become(READY)
        elif worker.state == DRAINING:
            worker.become(READY)

    @command()
    def ResetPrefixCache(self, request: Any) -> control.ResetPrefixCacheResponse:
        self.worker.cached.clear()
        return control.ResetPrefixCacheResponse()

    @command(needs_epoch=False)
    def CheckHealth(self, request: Any) -> control.CheckHealthResponse:
        return control.CheckHealthResponse(seconds_since_step=0.001)


def check_sleep(worker: Worker, request: Any) -> None:
    """Raise CallError for a sleep that there is not, or that is not claimed."""
    levels = {1: Capability.SLEEP_LEVEL_1, 2: Capability.SLEEP_LEVEL_2, 3: Capability.STANDBY}
    if request.level not in levels:
        raise CallError(INVALID, f"level is {request.level}; 1, 2 and 3 are allowed")
    if not TAGS.issuperset(request.tags):
        raise CallError(INVALID, f"tags is {list(request.tags)}; allowed are {sorted(TAGS)}")
    if request.level == 3 and request.tags:
        raise CallError(INVALID, "tags has to be empty at level 3")
    if levels[request.level] not in worker.claims:
        raise CallError(grpc.StatusCode.UNIMPLEMENTED, f"level {request.level} is not known here")
