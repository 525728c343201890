"""For tests: a fake worker behind the real gRPC protocol, guarded by the operator's role."""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from grpc import aio

from dormouse_api.auth import Proofs, RequireRole
from dormouse_api.names import CONTROL_SERVICE, METADATA_TICKET, Role
from dormouse_api.tickets import MetadataPairs, SigningKey, TicketCheck, public_check
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_operator.errors import WorkerRefused
from dormouse_operator.model import DeviceGrant, Report, Worker
from dormouse_operator.testing.adapters import to_told, to_wanted
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.workers import without_counts

Find = Callable[[Any], Awaitable[FakeWorker]]  # the worker that a call is for, from the call's context


class FakeControl(rpc.WorkerControlServicer):
    """Fake workers behind the real protocol."""

    def __init__(self, find: Find, look_s: float | None = 0.005) -> None:
        """Take what tells whose call it is, and how often a worker that is followed is looked at."""
        self._find = find
        self._look_s = look_s
        self._commanded: dict[str, asyncio.Event] = {}  # by pod UID: set once, when a command was given

    async def SwapEngine(self, request: pb.SwapEngineRequest, context: Any) -> pb.WorkerStatus:
        """See the contract."""
        return await self._do(
            context,
            lambda worker: worker.swap_engine(request.epoch, request.settings_digest, request.arguments),
        )

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.WorkerStatus:  # noqa: ARG002
        """See the contract."""
        return to_message((await self._find(context)).status())

    async def WatchStatus(self, request: pb.GetStatusRequest, context: Any) -> AsyncIterator[pb.WorkerStatus]:  # noqa: ARG002
        """See the contract."""
        worker, told = await self._find(context), None
        while True:
            commanded = self._commanded.setdefault(worker.pod_uid, asyncio.Event())
            status = worker.status()
            if without_counts(status) != told:
                told = without_counts(status)
                yield to_message(status)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await commanded.wait()

    async def InitializeCache(self, request: pb.InitializeCacheRequest, context: Any) -> pb.WorkerStatus:
        """See the contract."""
        return await self._do(context, lambda worker: worker.initialize_cache(request.epoch, request.num_gpu_blocks))

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        """See the contract."""
        status = await self._do(context, lambda worker: worker.drain(request.epoch))
        return pb.DrainResponse(remaining_requests=status.running_requests)

    async def PrepareSleep(self, request: pb.PrepareSleepRequest, context: Any) -> pb.PrepareSleepResponse:
        """See the contract."""
        abort, level = request.mode == pb.DRAIN_MODE_ABORT, request.level
        counter = request.request_counter if request.HasField("request_counter") else None
        await self._do(
            context,
            lambda worker: worker.prepare_sleep(request.epoch, level=level, abort=abort, request_counter=counter),
        )
        return pb.PrepareSleepResponse()

    async def PrepareWakeUp(self, request: pb.PrepareWakeUpRequest, context: Any) -> pb.PrepareWakeUpResponse:
        """See the contract."""
        await self._do(context, lambda worker: worker.prepare_wake_up(request.epoch))
        return pb.PrepareWakeUpResponse(missing_bytes=(await self._find(context)).missing_bytes)

    async def Sleep(self, request: pb.SleepRequest, context: Any) -> pb.WorkerStatus:
        """See the contract."""
        abort = request.mode == pb.DRAIN_MODE_ABORT
        return await self._do(context, lambda worker: worker.sleep(request.epoch, level=request.level, abort=abort))

    async def WakeUp(self, request: pb.WakeUpRequest, context: Any) -> pb.WorkerStatus:
        """See the contract."""
        return await self._do(context, lambda worker: worker.wake_up(request.epoch))

    async def GrantDevice(self, request: pb.GrantDeviceRequest, context: Any) -> pb.WorkerStatus:
        """See the contract."""
        grant = DeviceGrant(
            slot=request.slot,
            slot_epoch=request.slot_epoch,
            budget_bytes=request.budget_bytes,
            device=request.device,
        )
        return await self._do(context, lambda worker: worker.grant_device(request.epoch, grant, request.instance))

    async def RevokeDevice(self, request: pb.RevokeDeviceRequest, context: Any) -> pb.WorkerStatus:
        """See the contract."""
        return await self._do(context, lambda worker: worker.revoke_device(request.epoch, request.slot_epoch))

    async def SetLoras(self, request: pb.SetLorasRequest, context: Any) -> pb.SetLorasResponse:
        """See the contract."""
        adapters = [to_wanted(each) for each in request.adapters]
        await self._do(context, lambda worker: worker.set_loras(request.epoch, adapters, request.digest))
        return pb.SetLorasResponse()

    async def ListLoras(self, request: pb.ListLorasRequest, context: Any) -> pb.ListLorasResponse:  # noqa: ARG002
        """See the contract."""
        return pb.ListLorasResponse(adapters=map(to_told, (await self._find(context)).list_loras()))

    async def _do(self, context: Any, command: Callable[[FakeWorker], object]) -> pb.WorkerStatus:
        worker = await self._find(context)
        try:
            command(worker)
        except WorkerRefused as error:
            name, _, words = str(error).partition(": ")
            await context.abort(grpc.StatusCode[name], words)
        self._commanded.pop(worker.pod_uid, asyncio.Event()).set()
        return to_message(worker.status())


def to_message(worker: Worker) -> pb.WorkerStatus:
    """Return what goes over the wire."""
    report, failure, died = worker.report, worker.failure, worker.last_engine_failure
    return pb.WorkerStatus(
        state=pb.WorkerState.Value(f"WORKER_STATE_{worker.state}"),
        pod_uid=worker.pod_uid,
        settings_digest=worker.settings_digest,
        epoch=worker.epoch,
        running_requests=worker.running_requests,
        report=_to_report(report) if report else None,
        ranks=[pb.RankStatus(rank=report.rank, report=_to_report(report)) for report in worker.rank_reports],
        num_gpu_blocks=worker.num_gpu_blocks,
        residual_bytes=worker.residual_bytes,
        freed_bytes=worker.freed_bytes,
        host_copy_bytes=worker.host_copy_bytes,
        failure=pb.Failure(reason=failure.reason, message=failure.message) if failure else None,
        engine_failures=worker.engine_failures,
        last_engine_failure=pb.Failure(reason=died.reason, message=died.message) if died else None,
        last_engine_failure_unix_seconds=worker.engine_failed.timestamp() if worker.engine_failed else 0.0,
        last_sleep_seconds=worker.last_sleep_s,
        last_wake_seconds=worker.last_wake_s,
        sleep_level=worker.sleep_level,
        request_counter=worker.request_counter,
        swapping_to=worker.swapping_to,
        instance=worker.instance,
        grant=_to_grant(worker.grant) if worker.grant else None,
        needs_grant=worker.needs_grant,
        refused_slot_epoch=worker.refused_slot_epoch,
        missing_bytes=worker.missing_bytes,
        loras_digest=worker.adapters_digest,
        loras_version=worker.adapters_version,
    )


def _to_grant(grant: DeviceGrant) -> pb.DeviceGrant:
    return pb.DeviceGrant(
        slot=grant.slot, slot_epoch=grant.slot_epoch, budget_bytes=grant.budget_bytes, device=grant.device
    )


def _to_report(report: Report) -> pb.MemoryReport:
    return pb.MemoryReport(
        rank=report.rank,
        num_gpu_blocks=report.num_gpu_blocks,
        num_cpu_blocks=report.num_cpu_blocks,
        block_size=report.block_size,
        block_bytes=int(report.has_cache),
        total_bytes=report.total_bytes or int(not report.has_cache),
        device=report.device,
    )


class AnyPod:
    """Takes the operator's tickets for whichever pod they are made out to: one server stands in for many."""

    def __init__(self, seed: str) -> None:
        """Take the seed of the operator's key."""
        self._keys = {Role.OPERATOR: [public_check(SigningKey(seed, Role.OPERATOR).public)]}

    def role_of(self, metadata: MetadataPairs | None) -> Role:
        """See Proofs."""
        shown = list(metadata or ())
        audiences = [str(value).split(";")[1] for key, value in shown if key == METADATA_TICKET]
        return TicketCheck(audiences, self._keys).role_of(shown)

    def complaint(self, metadata: MetadataPairs | None) -> str:
        """See Proofs."""
        del metadata
        return ""


@asynccontextmanager
async def serve(worker: FakeWorker, operator_seed: str, address: str = "127.0.0.1:0") -> AsyncIterator[int]:
    """Serve a fake worker over gRPC, guarded by the operator's role; yields the port."""

    async def find(_: Any) -> FakeWorker:
        return worker

    public = SigningKey(operator_seed, Role.OPERATOR).public
    proofs = TicketCheck([worker.pod_uid], {Role.OPERATOR: [public_check(public)]})
    async with _serving(find, proofs, address, 0.005) as port:
        yield port


@asynccontextmanager
async def serve_found(find: Find, operator_seed: str, address: str, look_s: float | None = 0.005) -> AsyncIterator[int]:
    """Serve, at one address, the fake workers that `find` knows; yields the port.

    Streams tell of commands at once. Workers that are changed by hand tell nobody: streams look every `look_s`
    seconds; None = they need not.
    """
    async with _serving(find, AnyPod(operator_seed), address, look_s) as port:
        yield port


@asynccontextmanager
async def _serving(find: Find, proofs: Proofs, address: str, look_s: float | None) -> AsyncIterator[int]:
    server = aio.server(interceptors=[RequireRole(proofs, {CONTROL_SERVICE: Role.OPERATOR})])
    rpc.add_WorkerControlServicer_to_server(FakeControl(find, look_s), server)  # type: ignore[abstract]  # the rest: UNIMPLEMENTED
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=None)
