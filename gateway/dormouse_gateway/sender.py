"""Sends a call to one worker and passes its messages on. Knows no client: what it has for one goes to a `Write`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc import aio

from dormouse_api.mutual_tls import TlsError
from dormouse_api.names import PREFILL
from dormouse_api.status import CallError
from dormouse_gateway.call import Call, Constraints, Write
from dormouse_gateway.errors import WorkerFailure, WorkerStopped, read_failure, stopped, verdict_on
from dormouse_gateway.hold.holder import Holder
from dormouse_gateway.migrate.evictions import Evictions, StreamLease
from dormouse_gateway.migrate.progress import may_be_last
from dormouse_gateway.model import Endpoint
from dormouse_gateway.router import Lease, Router
from dormouse_gateway.routing.roles import REMOTE_DECODE
from dormouse_gateway.workers.channels import Channels

_END: Any = aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


class Sender:
    """Finds a worker for a call, waits for one if it may, and reports to the breaker how it did."""

    def __init__(
        self,
        router: Router,
        channels: Channels,
        holder: Holder,
        evictions: Evictions,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is the one that calls' deadlines are of."""
        self._router = router
        self._channels = channels
        self._holder = holder
        self._evictions = evictions
        self._clock = clock

    async def attempt(self, call: Call, write: Write, where: Constraints) -> WorkerFailure | None:
        """See `call.Attempt`."""
        with await self._lease(call, where) as lease:
            call.trace.sent(lease.endpoint, was_held=call.wait.is_held)
            failure = await self._send(call, lease, write, where)
            if failure or call.method.need_ready:  # what it answers asleep, too, says nothing good
                lease.report(verdict_on(failure, adapter=call.adapter))
        return failure

    async def _lease(self, call: Call, where: Constraints) -> Lease:
        """Choose a worker; a call that may go to any waits in line for one. Raises CallError.

        What sleeping workers answer too is not held. A stream that was begun waits for one that runs the same.
        """
        if not call.method.need_ready:
            return self._router.lease(call.deployment, need_ready=False, tried=where.tried, demand=call.demand)
        if where.like:
            return await self._holder.lease_heir(
                call.deployment, call.wait, like=where.like, demand=call.demand, tried=where.tried
            )
        return await self._holder.lease(call.deployment, call.wait, demand=call.demand, tried=where.tried)

    def _begin(self, call: Call, endpoint: Endpoint) -> Any:
        """Send the call to a worker. Raises CallError where this gateway could not prove itself there."""
        timeout_s = max(0.0, call.deadline - self._clock())
        body = call.body + REMOTE_DECODE if call.demand.role == endpoint.role == PREFILL else call.body
        try:
            return self._channels.call(endpoint.id, call.method, body, timeout_s=timeout_s, metadata=call.metadata)
        except TlsError as error:
            raise CallError(grpc.StatusCode.UNAVAILABLE, f"the gateway is not known to workers: {error}") from error

    async def _send(self, call: Call, lease: Lease, write: Write, where: Constraints) -> WorkerFailure | None:
        """Send the call to this worker and pass its messages on, each when the client took the one before."""
        endpoint, messages = lease.endpoint, 0
        ahead: asyncio.Task[Any] | None = None
        stream = self._begin(call, endpoint)
        with self._evictions.stay(endpoint, StreamLease(where.may_leave, stream.cancel)) as stay:
            try:
                message = await stream.read()
                while message is not _END:
                    # What follows the last message is read while that is being written: it ends the call.
                    ahead = _read_ahead(stream) if may_be_last(message) else None
                    await write(message)
                    messages += 1
                    if call.method.need_ready:
                        lease.advance()
                    message = await (ahead or stream.read())
            except aio.AioRpcError as error:
                return read_failure(error, endpoint=endpoint, messages=messages)
            except WorkerStopped:
                return stopped(endpoint, why="it gave the request up", messages=messages)
            except asyncio.CancelledError:
                if not stay.must_leave or _is_cancelling():
                    raise
                return stopped(endpoint, why="it must go", messages=messages)
            finally:
                if ahead:
                    ahead.cancel()
                stream.cancel()  # frees the worker at once when the client went away; nothing to a call that ended
        return None


def _read_ahead(stream: Any) -> asyncio.Task[Any]:
    """Begin to read; it is no error if nobody takes what came of it."""
    reading = asyncio.create_task(stream.read())
    reading.add_done_callback(lambda done: done.cancelled() or done.exception())
    return reading


def _is_cancelling() -> bool:
    """Return whether this very task was cancelled, and not only the stream that it reads."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
