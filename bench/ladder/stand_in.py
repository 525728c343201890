"""One stand-in worker: both of its services, and how long it takes for what. Computes nothing.

It listens some time after its pod runs, loads, reports, and is READY when the operator has agreed on its cache; it
sleeps and wakes as it is told. Status and load are told as the real front tells them.
"""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from grpc import aio

from bench.fleet.cluster import OPERATOR_SEED
from bench.ladder.journal import JournalWriter, What
from dormouse_api.auth import RequireRole
from dormouse_api.limits import server_options
from dormouse_api.names import CONTROL_PORT, CONTROL_SERVICE, INFERENCE_PORT, Role
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import worker_control_pb2 as control_pb
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.grpc import AnyPod, FakeControl, to_message
from dormouse_worker.front.api.inference import LOAD_INTERVAL_S
from dormouse_worker.front.engine.status_board import Changes

T = TypeVar("T")

BATCH = 64  # spec.engine.maxNumSeqs by default
TOKEN_S = 0.005
CROWD = "crowd"  # the deployment that wakes slowly
SLOW_WAKE_S = 3.0  # long enough for a thousand requests to arrive


_OPENING: dict[WorkerState, What] = {WorkerState.PROFILED: "ready", WorkerState.ASLEEP: "woken"}  # by former state


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a worker takes, in seconds."""

    listen_s: float  # from its pod's start until it listens
    load_s: float  # from then until it has loaded and profiled
    wake_s: dict[int, float]  # by level


def pace_of(deployment: str, start: int) -> Pace:
    """Return the pace of a deployment's n-th pod: starts differ, in every run alike; the crowd's wakes are slow."""
    rng = random.Random(f"{deployment} {start}")  # variety, nothing secret
    wakes_s = {1: SLOW_WAKE_S, 2: SLOW_WAKE_S} if deployment == CROWD else {1: 0.1, 2: 0.4}
    return Pace(rng.uniform(0.3, 0.9), rng.uniform(0.5, 1.5), wakes_s)


@dataclass(eq=False, slots=True)
class StandIn:
    """A worker and who is told of its changes."""

    deployment: str
    worker: FakeWorker
    pace: Pace
    journal: JournalWriter
    changes: Changes = field(default_factory=Changes)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one command at a time

    def __repr__(self) -> str:
        return f"StandIn({self.deployment}, {self.worker.state})"

    async def live(self, address: str) -> None:
        """Start as a container does, serve until cancelled, and be gone at once then."""
        await asyncio.sleep(self.pace.listen_s)
        servers = [self._control_server(address), self._inference_server(address)]
        try:
            for server in servers:
                await server.start()
            await asyncio.sleep(self.pace.load_s)
            self.worker.finish_loading()
            self.changes.notify()
            await asyncio.get_running_loop().create_future()
        finally:
            self.changes.close()
            for server in servers:
                await server.stop(None)

    async def wake_up(self) -> None:
        """Take as long to wake as the level asks for; nothing if it is awake."""
        level = self.worker.sleep_level
        if self.worker.state is not WorkerState.ASLEEP:
            return
        self.worker.state = WorkerState.WAKING
        self.journal.write("waking", self.deployment, level=level)
        self.changes.notify()
        await asyncio.sleep(self.pace.wake_s[level])
        self.worker.state = WorkerState.ASLEEP  # from where the state machine wakes it

    def note(self, was: WorkerState, level: int) -> None:
        """Note and tell what a command changed."""
        now = self.worker.state
        if now is WorkerState.READY and was in _OPENING:
            self.journal.write(_OPENING[was], self.deployment, level=level)
        elif now is WorkerState.ASLEEP and level != self.worker.sleep_level:
            self.journal.write("asleep", self.deployment, level=self.worker.sleep_level)
        self.changes.notify()

    def load(self) -> pb.Load:
        """Return the load."""
        running = self.worker.running_requests
        return pb.Load(
            running_requests=min(running, BATCH),
            waiting_requests=max(0, running - BATCH),
            ready=self.worker.state is WorkerState.READY,
            draining=self.worker.state is WorkerState.DRAINING,
        )

    def _control_server(self, address: str) -> aio.Server:
        server = aio.server(interceptors=[RequireRole(AnyPod(OPERATOR_SEED), {CONTROL_SERVICE: Role.OPERATOR})])
        control_rpc.add_WorkerControlServicer_to_server(Control(self), server)  # type: ignore[abstract]  # the rest: UNIMPLEMENTED
        server.add_insecure_port(f"{address}:{CONTROL_PORT}")
        return server

    def _inference_server(self, address: str) -> aio.Server:
        server = aio.server(options=server_options())
        rpc.add_InferenceServicer_to_server(Inference(self), server)  # type: ignore[abstract]  # the rest: UNIMPLEMENTED
        server.add_insecure_port(f"{address}:{INFERENCE_PORT}")
        return server


class Control(FakeControl):
    """The operator's door: a fake worker's, but wakes take their time and changes are told at once."""

    def __init__(self, stand_in: StandIn) -> None:
        """Take whose door it is."""

        async def find(_: Any) -> FakeWorker:
            return stand_in.worker

        super().__init__(find)
        self._stand_in = stand_in

    async def WatchStatus(
        self,
        request: control_pb.GetStatusRequest,  # noqa: ARG002
        context: Any,  # noqa: ARG002
    ) -> AsyncIterator[control_pb.WorkerStatus]:
        """See the contract."""
        one = self._stand_in
        async for status in one.changes.stream(one.worker.status, min_interval_s=0.0):
            yield to_message(status)

    async def WakeUp(self, request: control_pb.WakeUpRequest, context: Any) -> control_pb.WorkerStatus:
        """See the contract."""
        async with self._stand_in.turn:
            level = self._stand_in.worker.sleep_level
            await self._stand_in.wake_up()
            return await self._noted(super().WakeUp(request, context), level)

    async def InitializeCache(
        self, request: control_pb.InitializeCacheRequest, context: Any
    ) -> control_pb.WorkerStatus:
        """See the contract."""
        return await self._noted(super().InitializeCache(request, context), 0)

    async def PrepareSleep(
        self, request: control_pb.PrepareSleepRequest, context: Any
    ) -> control_pb.PrepareSleepResponse:
        """See the contract."""
        return await self._noted(super().PrepareSleep(request, context), self._stand_in.worker.sleep_level)

    async def Sleep(self, request: control_pb.SleepRequest, context: Any) -> control_pb.WorkerStatus:
        """See the contract."""
        return await self._noted(super().Sleep(request, context), self._stand_in.worker.sleep_level)

    async def Drain(self, request: control_pb.DrainRequest, context: Any) -> control_pb.DrainResponse:
        """See the contract."""
        return await self._noted(super().Drain(request, context), self._stand_in.worker.sleep_level)

    async def _noted(self, answer: Awaitable[T], level: int) -> T:
        """Carry the command out; note and tell what it changed."""
        was = self._stand_in.worker.state
        try:
            return await answer
        finally:
            self._stand_in.note(was, level)


class Inference(rpc.InferenceServicer):
    """The gateways' door."""

    def __init__(self, stand_in: StandIn) -> None:
        """Take whose door it is."""
        self._stand_in = stand_in

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """Give the first token at once, the others each after its time; refuse while not READY."""
        one, worker = self._stand_in, self._stand_in.worker
        if worker.state is not WorkerState.READY:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the worker is {worker.state}")
        one.journal.write("request", one.deployment, request_id=request.request_id)
        worker.request_counter += 1
        worker.running_requests += 1
        try:
            for number in range(1, request.sampling_params.max_tokens + 1):
                is_last = number == request.sampling_params.max_tokens
                reason = pb.FINISH_REASON_LENGTH if is_last else pb.FINISH_REASON_UNSPECIFIED
                yield pb.GenerateResponse(token_ids=[7], completion_tokens=number, finish_reason=reason)
                await asyncio.sleep(TOKEN_S)
        finally:
            worker.running_requests -= 1
            one.changes.notify()

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:  # noqa: ARG002
        """Describe a model of which there is one."""
        return pb.GetModelResponse(name=self._stand_in.deployment, model_digest="sha256:stand-in")

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: Any) -> AsyncIterator[pb.Load]:  # noqa: ARG002
        """Tell the load as the front does: at once whether it takes requests, numbers now and then."""
        one = self._stand_in
        async for load in one.changes.stream(
            one.load,
            min_interval_s=LOAD_INTERVAL_S,
            is_urgent=lambda told: (told.ready, told.draining) != (one.load().ready, one.load().draining),
        ):
            yield load
