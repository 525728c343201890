"""Speaks to gateways over gRPC, and finds them by DNS. The only place that knows GatewayControl's messages."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from grpc import aio

from dormouse_api.limits import channel_options
from dormouse_api.mutual_tls import MutualTls, TlsError, certificate_complaint, open_channel
from dormouse_api.names import Role
from dormouse_api.tickets import TicketBook
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_api.v1 import gateway_control_pb2_grpc as rpc
from dormouse_operator.errors import GatewayLost
from dormouse_operator.model import Key

Answer = Callable[[pb.LimitQuestions, str, float], Sequence[pb.LimitAnswer]]  # to a gateway of this name, now
SILENCE_S = 15.0  # a gateway says something every 5 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one gateway knows of one deployment. Times are on the operator's monotonic clock."""

    in_flight: int
    held: int
    last_request_s: float | None  # when a request last arrived or ended; None = none since it is known
    wanted_s: float | None = None  # when a request last waited for it to wake; None = none did
    known_since_s: float
    awake_workers: int
    running: int
    waiting: int
    mean_kv_cache_usage: float
    canary_fault: str = ""  # why it gives a canary no more requests; "" = it does
    canary_try: str = ""  # beside it: which try of it


@dataclass(frozen=True, slots=True)
class Told:
    """One update of one gateway."""

    changed: Mapping[Key, Report]
    removed: tuple[Key, ...]
    is_complete: bool  # it told of every deployment by now


class Gateways(Protocol):
    """All gateways of this release. Raises only GatewayLost."""

    async def find(self) -> frozenset[str]:
        """Return the addresses (host:port) of all that there are."""
        ...

    def watch(self, address: str) -> AsyncIterator[Told]:
        """Yield what the gateway there tells, for ever. Raises GatewayLost when it ends, breaks or is silent."""
        ...

    async def share_limits(self, address: str, answer: Answer, num_gateways: Callable[[], int]) -> None:
        """Answer what the gateway there asks about limits, for ever. Raises GatewayLost as `watch` does."""
        ...


class GrpcGateways:
    """Gateways behind a headless Service, with tickets of the operator that are made out to each one's address."""

    def __init__(
        self,
        service: str,
        tickets: TicketBook,
        *,
        clock: Callable[[], float] = time.monotonic,
        silence_s: float = SILENCE_S,
        tls: MutualTls | None = None,
    ) -> None:
        """Take the Service's host:port, whose name resolves to every gateway's own address; without TLS it is plain."""
        self._tls = tls
        self._host, _, self._port = service.rpartition(":")
        self._tickets = tickets
        self._clock = clock
        self._silence_s = silence_s

    async def find(self) -> frozenset[str]:
        """See Gateways."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise GatewayLost(f"no gateway is found under {self._host}: {error}") from error
        return frozenset(_host_port(address) for *_, address in found)

    async def watch(self, address: str) -> AsyncIterator[Told]:
        """See Gateways."""
        async with self._channel(address) as channel:
            stub: Any = rpc.GatewayControlStub(channel)
            call = stub.WatchActivity(pb.WatchActivityRequest(), metadata=self._proof(address))
            while True:
                update: pb.ActivityUpdate = await self._next(address, call, pb.ActivityUpdate)
                yield self._parse(update)

    async def share_limits(self, address: str, answer: Answer, num_gateways: Callable[[], int]) -> None:
        """See Gateways."""
        async with self._channel(address) as channel:
            stub: Any = rpc.GatewayControlStub(channel)
            call, gateway = stub.ShareLimits(metadata=self._proof(address)), address
            while True:
                told: pb.LimitQuestions = await self._next(address, call, pb.LimitQuestions)
                gateway = told.gateway or gateway
                answers = answer(told, gateway, self._clock())
                try:
                    await call.write(pb.LimitAnswers(answers=answers, num_gateways=num_gateways()))
                except (aio.AioRpcError, asyncio.InvalidStateError) as error:
                    raise GatewayLost(f"the gateway at {address} ended") from error

    def _channel(self, address: str) -> aio.Channel:
        try:
            return open_channel(address, self._tls, Role.GATEWAY, channel_options())
        except TlsError as error:
            raise GatewayLost(f"the gateway at {address}: {error}") from error

    def _proof(self, address: str) -> aio.Metadata:
        return aio.Metadata(*self._tickets.proof(_ip_of(address)))

    async def _next(self, address: str, call: Any, kind: type[Any]) -> Any:
        """Return the next message of this kind. Raises GatewayLost."""
        try:
            async with asyncio.timeout(self._silence_s):
                update = await call.read()
        except TimeoutError as error:
            raise GatewayLost(f"the gateway at {address} was silent for {self._silence_s:g} s") from error
        except aio.AioRpcError as error:
            raise GatewayLost(f"the gateway at {address}: {_words(error)}") from error
        if not isinstance(update, kind):
            raise GatewayLost(f"the gateway at {address} ended")
        return update

    def _parse(self, update: pb.ActivityUpdate) -> Told:
        now_s = self._clock()
        changed = {Key(item.namespace, item.name): _report(item, now_s) for item in update.activities}
        removed = tuple(Key(item.namespace, item.name) for item in update.removed)
        return Told(changed, removed, update.is_complete)


def _ip_of(address: str) -> str:
    """Return an address without its port and brackets, as a pod is told its own."""
    return address.rpartition(":")[0].strip("[]")


def _report(item: pb.Activity, now_s: float) -> Report:
    """Place ages on our own clock. The time on the way makes them younger than they are, never older."""
    has_had_one = item.HasField("last_request_age_seconds")
    was_wanted = item.HasField("wake_wanted_age_seconds")
    return Report(
        in_flight=item.in_flight_requests,
        held=item.held_requests,
        last_request_s=now_s - item.last_request_age_seconds if has_had_one else None,
        wanted_s=now_s - item.wake_wanted_age_seconds if was_wanted else None,
        known_since_s=now_s - item.known_age_seconds,
        awake_workers=item.awake_workers,
        running=item.running_requests,
        waiting=item.waiting_requests,
        mean_kv_cache_usage=item.mean_kv_cache_usage,
        canary_fault=item.canary_fault,
        canary_try=item.canary_try,
    )


def _words(error: aio.AioRpcError) -> str:
    """Return why: words about a connection are ours, so that they stay the same from try to try."""
    words = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return certificate_complaint(words) or "it does not accept connections"
    return f"{error.code().name}: {words}"


def _host_port(address: tuple[Any, ...]) -> str:
    """Return a socket's address as gRPC takes it."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
