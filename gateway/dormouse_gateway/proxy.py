"""dormouse.v1.Inference as the gateway serves it: reads the one request message, passes responses on as raw bytes.

On the wire an answer of one message is a stream of length one, so all methods are served and called alike.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
from grpc import aio

from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.names import INFERENCE_SERVICE
from dormouse_api.status import CallError, to_grpc_status
from dormouse_gateway.call import UNTRACED, Call, RequestTrace, Traces
from dormouse_gateway.canary.canaries import Canaries, Sighting
from dormouse_gateway.clients import requests
from dormouse_gateway.clients.keys import Caller, Keyring
from dormouse_gateway.clients.requests import METHODS, Method
from dormouse_gateway.clients.salts import Salts
from dormouse_gateway.errors import WorkerFailure, status_of
from dormouse_gateway.first_send import FirstSend
from dormouse_gateway.hold import announce
from dormouse_gateway.hold.holder import Holder
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.image_room import ImageRoom
from dormouse_gateway.meter import Meter
from dormouse_gateway.migrate.migrator import Migrator
from dormouse_gateway.router import Router
from dormouse_gateway.routing.demand import read_demand
from dormouse_gateway.routing.roles import role_of
from dormouse_gateway.sender import Sender
from dormouse_gateway.telemetry.metrics import UNKNOWN_MODEL, Metrics
from dormouse_gateway.workers.channels import Channels

_LOG = logging.getLogger(__name__)

Context = Any  # aio.ServicerContext, whose stubs lack abort_with_status
_END: Any = aio.EOF  # type: ignore[attr-defined]  # missing in the stubs

Admit = Callable[[Any], AbstractAsyncContextManager[Caller]]  # metadata → who calls, as long as the request runs
Forward = Callable[..., requests.Metadata]  # metadata, `caller` by name → what its worker is told


@dataclass(slots=True)
class _Record:
    """What metrics and trace will say of a request; filled in as it becomes known."""

    trace: RequestTrace
    client: FirstSend
    model: str = UNKNOWN_MODEL
    code: grpc.StatusCode = grpc.StatusCode.OK
    why: str = ""
    meter: Meter | None = None
    sighting: Sighting | None = None  # of a request whose end is compared with others'


class InferenceProxy:
    """Serves the Inference service from the workers' ones."""

    def __init__(  # noqa: PLR0913  # seven parts that it composes, two settings, two sources of truth for tests
        self,
        router: Router,
        channels: Channels,
        metrics: Metrics,
        holder: Holder,
        *,
        migrator: Migrator,
        has_role: bool = False,
        keys: Keyring | None = None,
        salts: Salts | None = None,
        forward: Forward | None = None,
        default_deadline_s: float = 600.0,
        rng: random.Random | None = None,
        traces: Traces = UNTRACED,
        images: ImageRoom | None = None,
    ) -> None:
        """Take whether its channels prove the role, the clients' keys, the deadline of requests that bring none.

        What workers are told of a caller is made with the salts, or by `forward` in their place.
        """
        self._router = router
        self._metrics = metrics
        self._mover = migrator
        self._keys = keys or Keyring()
        self._forward = forward or partial(requests.forwarded_metadata, has_role=has_role, salts=salts or Salts())
        self._has_role = has_role
        self._default_deadline_s = default_deadline_s
        self._rng = rng or random.SystemRandom()
        self._clock = migrator.clock
        self._sender = Sender(router, channels, holder, migrator.evictions, migrator.clock)
        self._traces = traces
        self.canaries = Canaries(router, rng=self._rng, clock=migrator.clock, on_abort=metrics.aborted)
        self.images = images or ImageRoom()
        self.num_taken = 0  # requests so far

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the service, to be added to a server. Neither requests nor responses are parsed by gRPC."""
        methods = {method.name: grpc.stream_stream_rpc_method_handler(self._serving(method)) for method in METHODS}
        methods["WatchLoad"] = grpc.stream_stream_rpc_method_handler(_refuse_watch_load)
        return grpc.method_handlers_generic_handler(INFERENCE_SERVICE, methods)

    def _serving(self, method: Method) -> Callable[[Any, Context], Awaitable[None]]:
        """Return a plain function: at every call gRPC looks what its handler is, and for long at a `partial`.

        It reads the message itself: gRPC leaves a call for one message that brings none without any answer.
        """

        async def serve(_messages: Any, context: Context) -> None:
            raw = await context.read()
            await self.serve(method, None if raw is _END else raw, context)

        return serve

    async def serve(self, method: Method, raw: bytes | None, context: Context, admit: Admit | None = None) -> None:
        """Serve one request (None: the client sent none), and count it however it ends.

        Who has been admitted already brings `admit`.
        """
        self.num_taken += 1
        record, started = _Record(self._traces.begin(method, context), FirstSend(context)), self._clock()
        try:
            status = await self._answer(method, raw, context, record, admit or self._keys.admit)
        except asyncio.CancelledError:
            record.code = _why_cancelled(context)
            raise
        finally:
            self._metrics.finished(record.model, method.name, record.code, self._clock() - started)
            record.trace.end(record.code, record.why)
            if record.sighting and record.meter:
                self.canaries.note(record.sighting, record.code, was_held=record.meter.call.wait.hold_s > 0)
            if record.meter and record.meter.has_begun:
                key = record.meter.caller.key
                self._metrics.used(key.name if key else "", record.meter.call.deployment.key, record.meter.usage)
        if status:
            await record.client.settled()
            await context.abort_with_status(status)

    async def _answer(
        self, method: Method, raw: bytes | None, context: Context, record: _Record, admit: Admit
    ) -> grpc.Status | None:
        """Route and forward; return the status to end with, None after success."""
        try:
            async with admit(context.invocation_metadata()) as caller:
                call = self._prepare(method, raw, context, record, caller)
                record.meter = Meter(call, caller)
                told = announce.told_at_the_end(context, call.wait, caller.headers, is_told=method.need_ready)
                with self._counted(call), told, self._room_for(raw, call):
                    async with self._keys.tenure(caller):
                        write = record.meter.writing(record.trace.writing(record.client.write))
                        write = record.sighting.writing(write) if record.sighting else write
                        await self._mover.go(call, write, self._sender.attempt)
        except CallError as error:
            record.code, record.why = error.code, error.message
            self._metrics.rejected(error)
            return to_grpc_status(error)
        except WorkerFailure as failure:
            status = status_of(failure)
            record.code, record.why = status.code, status.details
            return status
        except Exception:  # noqa: BLE001  # the outermost layer: whatever it is becomes a status and a log line
            record.code = grpc.StatusCode.INTERNAL
            error_id = uuid.uuid4().hex[:12]
            record.why = f"look for {error_id} in the gateway's log"
            _LOG.exception("error %s in %s of %s", error_id, method.name, record.model)
            return to_grpc_status(CallError(record.code, f"the gateway failed; look for {error_id} in its log"))
        return None

    def _room_for(self, raw: bytes | None, call: Call) -> AbstractContextManager[None]:
        """Take room for what is kept of a request with images until its end: as it came, and as it is sent."""
        sizes = len(raw or b""), len(call.body)
        return self.images.taken(sum(sizes)) if max(sizes) > MAX_MESSAGE_BYTES else nullcontext()

    def _counted(self, call: Call) -> AbstractContextManager[None]:
        """Count the call as activity of its deployment; what sleeping workers answer too is none."""
        return self._router.activity.request(call.deployment.key) if call.method.need_ready else nullcontext()

    def _prepare(self, method: Method, raw: bytes | None, context: Context, record: _Record, caller: Caller) -> Call:
        """Read, check and route the request. Raises CallError."""
        remaining_s = context.time_remaining()
        deadline = self._clock() + (self._default_deadline_s if remaining_s is None else remaining_s)
        request, given = requests.parse(method, raw), context.invocation_metadata()
        meant = self._router.resolve(request.model, caller)
        if method.need_ready:
            meant = self.canaries.choose(meant, caller, given)
            record.sighting = self.canaries.watch(meant.deployment)
        deployment = meant.deployment
        record.model = deployment.full_name
        if isinstance(request, requests.WithImages):
            self.images.kept.fill(request.chat, given)
        body = requests.prepare(request, model_name=meant.worker_name, rng=self._rng)
        metadata = self._forward(given, caller=caller.name(context.peer()))
        wait = HoldTicket(len(body), deadline, partial(announce.tell_held, record.client), flow=caller.flow)
        salt = requests.sent_salt(metadata)
        demand = read_demand(request, num_bytes=len(body), salt=salt, adapter=meant.adapter)
        if deployment.roles:
            can_hand_over = self._has_role and self._router.pool.can_hand_over(deployment.key)
            least = deployment.min_prefill_tokens
            role = role_of(request, demand, least_tokens=least, can_hand_over=can_hand_over)
            demand = replace(demand, role=role)
        call = Call(method, deployment, body, metadata, deadline, wait, demand, adapter=meant.adapter)
        return record.trace.routed(call, request)


def _why_cancelled(context: Context) -> grpc.StatusCode:
    """Tell a client that went away from one whose deadline passed."""
    is_late = context.time_remaining() == 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED


async def _refuse_watch_load(_messages: Any, context: Context) -> None:
    """The load of one worker says nothing about a gateway."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "WatchLoad is served by workers, not by the gateway")
