"""`envoy.service.ext_proc.v3.ExternalProcessor`: which worker gets a request that goes past this gateway.

The way is the one of every other door: keys, limits, names, line, wake, policy and breakers are the gateway's own. Only
the request itself goes from Envoy to the worker's HTTP port, with a ticket that proves that it was let in here. For all
that counts requests it runs until Envoy has seen the response's end, or goes.
"""

# ruff: noqa: N802  the method's name is that of the .proto file
from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypedDict

import grpc
from starlette.types import ASGIApp

from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_api.foreign import ext_proc_pb2_grpc as rpc
from dormouse_api.status import CallError
from dormouse_api.tickets import TicketBook
from dormouse_gateway.canary.canaries import Canaries, Sighting
from dormouse_gateway.clients.keys import Caller, Keyring
from dormouse_gateway.clients.requests import Metadata, forwarded_metadata, sent_salt
from dormouse_gateway.clients.salts import Salts
from dormouse_gateway.hold.holder import Holder
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.model import Deployment, EndpointId, Meant
from dormouse_gateway.openai.bodies import ClientGone
from dormouse_gateway.openai.doors import Door
from dormouse_gateway.openai.errors import ApiError, Words, from_call_error, openai_body
from dormouse_gateway.openai.headers import request_id, to_metadata
from dormouse_gateway.picker import answers
from dormouse_gateway.picker.asked import Asked, door_of, read_asked
from dormouse_gateway.picker.candidates import left_out
from dormouse_gateway.picker.exchange import Context, Exchange
from dormouse_gateway.picker.head import Head, read_head
from dormouse_gateway.picker.in_process import answered
from dormouse_gateway.picker.passing import Passing
from dormouse_gateway.picker.toll import Toll
from dormouse_gateway.router import Lease, Router
from dormouse_gateway.routing.policy import Demand
from dormouse_gateway.telemetry.metrics import UNKNOWN_MODEL, Metrics

_METHOD = "Process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The gateway's parts that a pick goes through."""

    router: Router
    holder: Holder
    keys: Keyring
    metrics: Metrics
    app: ASGIApp  # our HTTP API, for what needs no worker
    canaries: Canaries  # the gateway's own: requests of all its doors are compared with each other


@dataclass(frozen=True, slots=True)
class Proofs:
    """What shows a worker that a request was let in, and whose it is."""

    tickets: TicketBook
    salts: Salts

    def forwarded(self, metadata: Metadata, caller: Caller, peer: str) -> Metadata:
        """Return what the worker is told of the caller."""
        return forwarded_metadata(metadata, caller=caller.name(peer), has_role=bool(self.tickets), salts=self.salts)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a body may take to come, and a request to find its worker."""

    body_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class _Visit:
    """One request as it came."""

    head: Head
    door: Door
    exchange: Exchange
    record: _Record
    peer: str
    id: str


@dataclass(slots=True)
class _Way:
    """A request on its way to a worker."""

    asked: Asked
    meant: Meant
    told: Metadata  # to the worker, of the caller
    wait: HoldTicket


class _Seeking(TypedDict):
    """Which worker a request looks for."""

    demand: Demand
    tried: Mapping[EndpointId, int]  # those that will not do


@dataclass(slots=True)
class _Record:
    """What is counted of a request."""

    model: str = UNKNOWN_MODEL
    code: grpc.StatusCode = grpc.StatusCode.OK
    sighting: Sighting | None = None  # of a request whose end is compared with others'
    wait: HoldTicket | None = None
    passing: Passing | None = None  # once a worker was found

    @property
    def outcome(self) -> grpc.StatusCode:
        """Return how the request ended, by its response if it had a worker: Envoy may hang up once it has the last."""
        return self.passing.outcome if self.passing else self.code


class EndpointPicker(rpc.ExternalProcessorServicer):
    """Serves Envoy."""

    def __init__(self, core: Core, proofs: Proofs, limits: Limits) -> None:
        """Take the gateway's parts, what proves its role to workers, and the times."""
        self._core = core
        self._proofs = proofs
        self._limits = limits
        self._clock: Callable[[], float] = core.holder.clock
        self.num_taken = 0  # requests so far

    async def Process(self, _messages: Any, context: Context) -> None:  # type: ignore[override]  # writes itself
        """Serve one request and its response."""
        self.num_taken += 1
        exchange, record, started = Exchange(context), _Record(), self._clock()
        try:
            first = await exchange.read()
            if first is None or first.WhichOneof("request") != "request_headers":
                words = "the conversation does not begin with a request's headers: request_header_mode must be SEND"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
            else:
                await self._serve(read_head(first), exchange, record, context.peer())
        except ClientGone:
            record.code = grpc.StatusCode.CANCELLED
        except asyncio.CancelledError:
            record.code = grpc.StatusCode.CANCELLED
            raise
        finally:
            exchange.close()
            if record.sighting and record.wait:
                self._core.canaries.note(record.sighting, record.outcome, was_held=record.wait.hold_s > 0)
            self._core.metrics.finished(record.model, _METHOD, record.code, self._clock() - started)

    async def _serve(self, head: Head, exchange: Exchange, record: _Record, peer: str) -> None:
        """Send the request to a worker and see its response through, or answer in the worker's place."""
        drawn, door = str(uuid.uuid4()), door_of(head)
        try:
            head.check()
            drawn = request_id(head.headers) or drawn
            if door is None:
                await exchange.say(await answered(self._core.app, head))
                return
            async with AsyncExitStack() as opened:
                await self._let_through(_Visit(head, door, exchange, record, peer, drawn), opened)
        except (ApiError, CallError) as error:
            await exchange.say(self._refusal(error, record, door.words if door else openai_body, drawn))

    async def _let_through(self, visit: _Visit, opened: AsyncExitStack) -> None:
        """Let the request in, to its worker, and its response out. Raises ApiError, CallError, ClientGone."""
        head, exchange, keys = visit.head, visit.exchange, self._core.keys
        metadata = to_metadata(head.headers)
        caller = keys.identify(metadata)  # before anything is read
        asked = read_asked(visit.door, head, await exchange.body(head, self._limits.body_s), visit.id)
        caller = await opened.enter_async_context(keys.admit(metadata, num_requests=asked.num_calls))
        meant = self._meant(asked, caller, metadata, head.subset, visit.record)
        way = self._way(asked, meant, caller, self._proofs.forwarded(metadata, caller, visit.peer))
        visit.record.wait = way.wait
        await opened.enter_async_context(keys.tenure(caller))
        lease = await self._lease(way, exchange, opened, head.subset)
        await self._send(head, way, lease, exchange)
        toll = Toll(caller, lease.ticket.demand)
        opened.callback(toll.charge)
        visit.record.passing = Passing(head, lease, toll, way.wait, visit.record.sighting)
        await visit.record.passing.follow(exchange)

    def _refusal(self, error: ApiError | CallError, record: _Record, words: Words, drawn: str) -> pb.ProcessingResponse:
        """Count a refusal, and return it in the words of the door that was asked for."""
        if isinstance(error, ApiError):
            record.code = grpc.StatusCode.INVALID_ARGUMENT
            return answers.refusal(error, words, drawn)
        record.code = error.code
        self._core.metrics.rejected(error)
        return answers.refusal(from_call_error(error), words, drawn)

    def _meant(
        self, asked: Asked, caller: Caller, metadata: Metadata, subset: frozenset[str] | None, record: _Record
    ) -> Meant:
        """Return whom the request means, or the canary that shall answer it. Raises CallError."""
        meant = self._core.router.resolve(asked.model, caller)
        if asked.need_ready:
            chosen = self._core.canaries.choose(meant, caller, metadata)
            meant = chosen if self._can_reach(chosen.deployment, subset) else meant
            record.sighting = self._core.canaries.watch(meant.deployment)
        record.model = meant.deployment.full_name
        if not meant.deployment.has_http:
            raise _not_offered(record.model)
        return meant

    def _can_reach(self, deployment: Deployment, subset: frozenset[str] | None) -> bool:
        """Return whether the gateway that asks can send requests there: else a canary gets none of them."""
        endpoints = self._core.router.pool.endpoints_of(deployment.key)
        is_allowed = subset is None or any(endpoint.serves_http(subset) for endpoint in endpoints)
        return deployment.has_http and is_allowed

    def _way(self, asked: Asked, meant: Meant, caller: Caller, told: Metadata) -> _Way:
        """Return the way to whom is meant, and how long the request may wait."""
        wait = HoldTicket(len(asked.raw), self._clock() + self._limits.deadline_s, flow=caller.flow)
        return _Way(asked, meant, told, wait)

    async def _lease(
        self, way: _Way, exchange: Exchange, opened: AsyncExitStack, subset: frozenset[str] | None
    ) -> Lease:
        """Enter the lease of a worker with an HTTP port, of `subset` where there is one. Raises CallError, ClientGone.

        A request that has to wait for its worker does so as long as Envoy does.
        """

        async def be_patient(limit_s: float) -> None:
            await exchange.say(answers.patience(limit_s))

        if way.asked.need_ready:
            opened.enter_context(self._core.router.activity.request(way.meant.deployment.key))
        way.wait.on_held = be_patient
        seeking = self._seeking(way, subset)
        if lease := self._lease_now(way, seeking):
            opened.enter_context(lease)
        else:
            lease = await exchange.unless_gone(self._held(way, seeking, opened))
        if not lease.endpoint.serves_http(subset):
            raise _none_allowed(way.meant.deployment.full_name)
        return lease

    def _seeking(self, way: _Way, subset: frozenset[str] | None) -> _Seeking:
        """Return what to look for. Raises CallError where Envoy allows no worker."""
        endpoints = self._core.router.pool.endpoints_of(way.meant.deployment.key)
        others = left_out(endpoints, subset)
        if subset is not None and len(others) == len(endpoints):
            raise _none_allowed(way.meant.deployment.full_name)
        return _Seeking(demand=way.asked.demand(sent_salt(way.told), way.meant), tried=others)

    def _lease_now(self, way: _Way, seeking: _Seeking) -> Lease | None:
        """Return a worker that has room, None where the request has to wait. Raises CallError."""
        deployment = way.meant.deployment
        if way.asked.need_ready:
            return self._core.holder.lease_now(deployment, way.wait, **seeking)
        return self._core.router.lease(deployment, need_ready=False, **seeking)

    async def _held(self, way: _Way, seeking: _Seeking, opened: AsyncExitStack) -> Lease:
        """Enter the lease of the worker that the request waited for. Raises CallError."""
        lease = await self._core.holder.lease(way.meant.deployment, way.wait, **seeking)
        return opened.enter_context(lease)

    async def _send(self, head: Head, way: _Way, lease: Lease, exchange: Exchange) -> None:
        """Tell Envoy where the request goes."""
        endpoint = lease.endpoint
        proof = (*way.told, *self._proofs.tickets.proof(endpoint.id.pod_uid))
        shown = [(key, str(value)) for key, value in proof if key.startswith(answers.OWN)]
        body = way.asked.named(way.meant.worker_name)
        is_changed = body is not way.asked.raw
        for response in answers.destination(head, endpoint.http_address, shown, body=body, is_changed=is_changed):
            await exchange.say(response)


def _not_offered(full_name: str) -> CallError:
    words = f"{full_name} is not served to other gateways; its spec.serving.inferencePool is not true"
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, words)


def _none_allowed(full_name: str) -> CallError:
    words = f"{full_name} has no worker with an HTTP port among those that the gateway before this one allows"
    return CallError(grpc.StatusCode.UNAVAILABLE, words, 1.0)
