"""Speaks to workers over gRPC. Only here and in `worker_status` the wire's messages and gRPC's errors are known.

Every call opens a connection and closes it when it ends: nothing stays open to a worker at rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import grpc
from grpc import aio

from dormouse_api.limits import channel_options
from dormouse_api.mutual_tls import MutualTls, TlsError, certificate_complaint, open_channel
from dormouse_api.names import CONTROL_PORT, Role
from dormouse_api.tickets import TicketBook
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_operator.act.worker_adapters import parse_adapter, write_adapter
from dormouse_operator.act.worker_status import parse_worker
from dormouse_operator.errors import CredentialRefused, WorkerError, WorkerRefused, WorkerUnreachable
from dormouse_operator.model import DeviceGrant, Pod, Worker
from dormouse_operator.model.adapters import Adapter, HeldAdapter
from dormouse_operator.model.units import in_gib

STATUS_TIMEOUT_S = 3.0
DRAIN_STEP_S = 2.0  # one call waits this long for requests to end; then the order is looked at again
SWAP_STEP_S = 20.0  # one call waits this long for a swap; then the order is looked at again
MEMORY_TIMEOUT_S = 600.0  # allocating, sleeping, waking: as long as reading the weights anew may take

_UNKNOWN_TO_IT = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}

_T = TypeVar("_T")


class WorkerControl(Protocol):
    """Commands to a pod's worker. Each is idempotent. Raises only WorkerError's kinds."""

    async def get_status(self, pod: Pod) -> Worker:
        """Return what the worker says of itself."""
        ...

    def watch_status(self, pod: Pod) -> AsyncIterator[Worker]:
        """Yield what the worker says of itself, at once and on every change, over a connection that stays open."""
        ...

    async def initialize_cache(self, pod: Pod, *, epoch: int, num_gpu_blocks: int, num_cpu_blocks: int) -> Worker:
        """Allocate the cache; returns when the worker serves. WorkerRefused while requests run."""
        ...

    async def drain(self, pod: Pod, *, epoch: int) -> int:
        """Refuse new requests and wait a moment for the running ones; return how many are left."""
        ...

    async def prepare_sleep(
        self, pod: Pod, *, epoch: int, level: int, abort: bool, request_counter: int | None = None
    ) -> None:
        """Have the worker close and be idle, ready for `sleep`. With `abort`, running requests are ended.

        WorkerRefused where `request_counter` is given and the worker, awake, has accepted another number of requests.
        """
        ...

    async def sleep(self, pod: Pod, *, epoch: int, level: int, abort: bool) -> Worker:
        """Put the worker to sleep. With `abort`, running requests are ended first."""
        ...

    async def prepare_wake_up(self, pod: Pod, *, epoch: int) -> None:
        """Have the worker reserve all that it needs awake. WorkerRefused with the bytes that are missing."""
        ...

    async def wake_up(self, pod: Pod, *, epoch: int) -> Worker:
        """Wake the worker, or end its draining; returns when it serves."""
        ...

    async def swap_engine(
        self, pod: Pod, *, epoch: int, arguments: Sequence[str], settings_digest: str, timeout_s: float
    ) -> Worker:
        """Put an engine with other arguments in the place of the present one; returns when it has profiled.

        WorkerUnreachable while that takes longer than one call: the swap goes on, and asking again waits for it.
        WorkerRefused with the new engine's reason where it did not start in time: the old one serves again.
        """
        ...

    async def grant_device(self, pod: Pod, *, epoch: int, grant: DeviceGrant, instance: str) -> Worker:
        """Let the worker use the device of a pool's slot, if its container is still this instance.

        WorkerRefused where it has heard of a later slot epoch.
        """
        ...

    async def revoke_device(self, pod: Pod, *, epoch: int, slot_epoch: int) -> Worker:
        """Take the grant back. WorkerRefused while the worker holds memory."""
        ...

    async def set_loras(self, pod: Pod, *, epoch: int, adapters: Sequence[Adapter], digest: str) -> None:
        """Say which adapters there shall be, and no others. They are loaded after the answer."""
        ...

    async def list_loras(self, pod: Pod) -> tuple[HeldAdapter, ...]:
        """Return the adapters that the worker was told, loaded or not."""
        ...


class GrpcWorkerControl:
    """WorkerControl over gRPC, with tickets of the operator that are made out to one pod each."""

    def __init__(self, tickets: TicketBook, *, port: int = CONTROL_PORT, tls: MutualTls | None = None) -> None:
        """Take the operator's tickets and certificate (None: workers are plain); the port differs in tests only."""
        self._tickets = tickets
        self._tls = tls
        self._port = port

    async def get_status(self, pod: Pod) -> Worker:
        """See WorkerControl."""
        return parse_worker(await self._call(pod, STATUS_TIMEOUT_S, lambda stub: stub.GetStatus, pb.GetStatusRequest()))

    async def watch_status(self, pod: Pod) -> AsyncIterator[Worker]:
        """See WorkerControl. A peer that is cut off is noticed by the channel's keepalive."""
        async with self._connection(pod) as stub:
            async for status in stub.WatchStatus(pb.GetStatusRequest(), metadata=self._proof(pod)):
                yield parse_worker(status)

    async def initialize_cache(self, pod: Pod, *, epoch: int, num_gpu_blocks: int, num_cpu_blocks: int) -> Worker:
        """See WorkerControl."""
        request = pb.InitializeCacheRequest(epoch=epoch, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks)
        return parse_worker(await self._call(pod, MEMORY_TIMEOUT_S, lambda stub: stub.InitializeCache, request))

    async def drain(self, pod: Pod, *, epoch: int) -> int:
        """See WorkerControl."""
        request = pb.DrainRequest(epoch=epoch, timeout_seconds=DRAIN_STEP_S)
        answer = await self._call(pod, DRAIN_STEP_S + STATUS_TIMEOUT_S, lambda stub: stub.Drain, request)
        return int(answer.remaining_requests)

    async def prepare_sleep(
        self, pod: Pod, *, epoch: int, level: int, abort: bool, request_counter: int | None = None
    ) -> None:
        """See WorkerControl."""
        request = pb.PrepareSleepRequest(
            epoch=epoch, level=level, mode=_mode(abort=abort), request_counter=request_counter
        )
        await self._call(pod, MEMORY_TIMEOUT_S, lambda stub: stub.PrepareSleep, request)

    async def sleep(self, pod: Pod, *, epoch: int, level: int, abort: bool) -> Worker:
        """See WorkerControl."""
        request = pb.SleepRequest(epoch=epoch, level=level, mode=_mode(abort=abort))
        return parse_worker(await self._call(pod, MEMORY_TIMEOUT_S, lambda stub: stub.Sleep, request))

    async def prepare_wake_up(self, pod: Pod, *, epoch: int) -> None:
        """See WorkerControl."""
        request = pb.PrepareWakeUpRequest(epoch=epoch)
        answer = await self._call(pod, MEMORY_TIMEOUT_S, lambda stub: stub.PrepareWakeUp, request)
        if answer.missing_bytes:
            raise WorkerRefused(f"{in_gib(answer.missing_bytes)} of memory are missing to wake up")

    async def wake_up(self, pod: Pod, *, epoch: int) -> Worker:
        """See WorkerControl."""
        request = pb.WakeUpRequest(epoch=epoch)
        return parse_worker(await self._call(pod, MEMORY_TIMEOUT_S, lambda stub: stub.WakeUp, request))

    async def swap_engine(
        self, pod: Pod, *, epoch: int, arguments: Sequence[str], settings_digest: str, timeout_s: float
    ) -> Worker:
        """See WorkerControl."""
        request = pb.SwapEngineRequest(
            epoch=epoch, arguments=arguments, settings_digest=settings_digest, timeout_seconds=timeout_s
        )
        return parse_worker(await self._call(pod, SWAP_STEP_S, lambda stub: stub.SwapEngine, request))

    async def grant_device(self, pod: Pod, *, epoch: int, grant: DeviceGrant, instance: str) -> Worker:
        """See WorkerControl."""
        request = pb.GrantDeviceRequest(
            epoch=epoch,
            slot=grant.slot,
            slot_epoch=grant.slot_epoch,
            budget_bytes=grant.budget_bytes,
            device=grant.device,
            reserved_bytes=grant.reserved_bytes,
            awake_per_slot=grant.awake_per_slot,
            instance=instance,
        )
        return parse_worker(await self._call(pod, STATUS_TIMEOUT_S, lambda stub: stub.GrantDevice, request))

    async def revoke_device(self, pod: Pod, *, epoch: int, slot_epoch: int) -> Worker:
        """See WorkerControl."""
        request = pb.RevokeDeviceRequest(epoch=epoch, slot_epoch=slot_epoch)
        return parse_worker(await self._call(pod, STATUS_TIMEOUT_S, lambda stub: stub.RevokeDevice, request))

    async def set_loras(self, pod: Pod, *, epoch: int, adapters: Sequence[Adapter], digest: str) -> None:
        """See WorkerControl."""
        request = pb.SetLorasRequest(epoch=epoch, adapters=map(write_adapter, adapters), digest=digest)
        await self._call(pod, STATUS_TIMEOUT_S, lambda stub: stub.SetLoras, request)

    async def list_loras(self, pod: Pod) -> tuple[HeldAdapter, ...]:
        """See WorkerControl."""
        answer = await self._call(pod, STATUS_TIMEOUT_S, lambda stub: stub.ListLoras, pb.ListLorasRequest())
        return tuple(map(parse_adapter, answer.adapters))

    async def _call(
        self,
        pod: Pod,
        timeout_s: float,
        method: Callable[[rpc.WorkerControlAsyncStub], Callable[..., Awaitable[_T]]],
        request: object,
    ) -> _T:
        """Make one call over a connection of its own."""
        async with self._connection(pod) as stub:
            return await method(stub)(request, timeout=timeout_s, metadata=self._proof(pod))

    def _proof(self, pod: Pod) -> aio.Metadata:
        return aio.Metadata(*self._tickets.proof(pod.uid))

    @asynccontextmanager
    async def _connection(self, pod: Pod) -> AsyncIterator[rpc.WorkerControlAsyncStub]:
        """Open a channel, map what goes wrong on it, close it."""
        address = pod.ip
        host = f"[{address}]" if ":" in address and not address.startswith("unix:") else address
        target = host if address.startswith("unix:") else f"{host}:{self._port}"
        try:
            channel = open_channel(target, self._tls, Role.WORKER, channel_options())
        except TlsError as error:
            raise WorkerUnreachable(str(error)) from error
        async with channel:
            try:
                yield rpc.WorkerControlStub(channel)
            except aio.AioRpcError as error:
                raise _to_error(error) from error


def _mode(*, abort: bool) -> pb.DrainMode.ValueType:
    return pb.DRAIN_MODE_ABORT if abort else pb.DRAIN_MODE_DRAIN


def _to_error(error: aio.AioRpcError) -> WorkerError:
    """Map a gRPC status. Words about the connection are ours, so that they stay the same from try to try."""
    code, words = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        return WorkerUnreachable(certificate_complaint(words) or "it does not accept connections")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return WorkerUnreachable("it does not answer in time")
    kind = CredentialRefused if code in _UNKNOWN_TO_IT else WorkerRefused
    return kind(f"{code.name}: {words}")
