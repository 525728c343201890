"""Connections to workers: one channel per endpoint, opened at the first call, closed when the endpoint goes.

Generate calls go over the channel's `Relay` while it is open, and by themselves while it is not.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from grpc import aio

from dormouse_api.limits import MAX_IMAGES_BYTES, MAX_MESSAGE_BYTES, channel_options
from dormouse_api.mutual_tls import MutualTls, open_channel
from dormouse_api.names import Role
from dormouse_api.tickets import TicketBook
from dormouse_gateway.clients.requests import GENERATE, Metadata, Method
from dormouse_gateway.model import EndpointId
from dormouse_gateway.workers.relay import MAX_REQUEST_BYTES, Relay

_SPARE_BYTES = 128 << 10  # what the gateway adds to a request of the largest size; the worker then names the limit
_CONNECT_TIMEOUT_MS = 2_000  # gRPC's own is 20 s: too long on the way to a node that is gone
# A worker that falls silent is noticed within 17 s, however long it had nothing to say. gRPC by itself asks for two
# signs of life in a row and then for one a minute; and for one to measure the way, for which it waits a minute without
# asking for another: hence the third line. Workers take offence at more than one in 10 s.
_KEEPALIVE = {
    "grpc.keepalive_time_ms": 12_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.http2.ping_timeout_ms": 5_000,
    "grpc.http2.max_pings_without_data": 0,
}


RETIRED_S = 3_700.0  # how long calls may go on over a former certificate: no worker lets one take longer than an hour

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Way:
    """One connection to a worker."""

    channel: aio.Channel
    relay: Relay | None  # None: the gateway can prove its role to nobody, and is carried nothing

    async def aclose(self) -> None:
        """End everything on it."""
        if self.relay:
            await self.relay.aclose()
        await self.channel.close(None)


class Channels:
    """Owns every channel. Closing happens in the background; `aclose` waits for all of it.

    A channel keeps the certificate that it was made with. With a renewed one the endpoints get new channels for new
    calls; calls that run end on the old ones, which are closed when even the longest of them has ended.
    """

    def __init__(
        self, tls: MutualTls | None = None, *, tickets: TicketBook | None = None, in_pod: bool = False
    ) -> None:
        """Start without any. Without TLS workers are plain; without tickets each call goes by itself, as a client's.

        A worker of the same pod (`in_pod`) carries calls without that its caller proves anything.
        """
        self._tls = tls
        self._tickets = tickets or TicketBook(Role.GATEWAY, ())
        self._carries = in_pod or bool(self._tickets)
        self._ways: dict[EndpointId, _Way] = {}
        self._retired: dict[asyncio.TimerHandle, tuple[EndpointId, _Way]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        """Show the addresses."""
        return f"Channels({', '.join(sorted(endpoint.address for endpoint in self._ways))})"

    def get(self, endpoint: EndpointId) -> aio.Channel:
        """Return the endpoint's channel; opens it if there is none. Raises TlsError."""
        return self._way(endpoint).channel

    def carry_soon(self, endpoint: EndpointId) -> None:
        """Have the calls over the endpoint's channel carried once it says that it can. No error without a channel."""
        way = self._ways.get(endpoint)
        if way and way.relay:
            way.relay.open_soon()

    def call(self, endpoint: EndpointId, method: Method, body: bytes, *, timeout_s: float, metadata: Metadata) -> Any:
        """Begin a call, and return it: something with gRPC's `read` and `cancel`. Raises TlsError."""
        way, metadata = self._way(endpoint), (*metadata, *self._tickets.proof(endpoint.pod_uid))
        if way.relay and method is GENERATE and len(body) <= MAX_REQUEST_BYTES:
            if way.relay.is_open:
                return way.relay.call(body, timeout_s=timeout_s, metadata=metadata)
            way.relay.open_soon()
        channel: Any = way.channel  # the stubs demand serializers: raw bytes need none
        return channel.unary_stream(method.path)(body, timeout=timeout_s, metadata=aio.Metadata(*metadata))

    def renew(self) -> None:
        """Let new calls use the certificate that is in use by now; running ones go on."""
        loop = asyncio.get_running_loop()
        for endpoint, way in self._ways.items():
            handle = loop.call_later(RETIRED_S, self._close_retired, way)
            self._retired[handle] = (endpoint, way)
        _LOG.info("%d workers get new connections for new calls", len(self._ways))
        self._ways = {}

    def discard(self, endpoint: EndpointId) -> None:
        """Close the endpoint's channel soon. No error if there is none; calls on it are cancelled."""
        way = self._ways.pop(endpoint, None)
        if way is not None:
            self._close(way)
        for retired in [way for owner, way in self._retired.values() if owner == endpoint]:
            self._close_retired(retired)

    async def aclose(self) -> None:
        """Close everything."""
        for endpoint in {*self._ways, *(owner for owner, _ in self._retired.values())}:
            self.discard(endpoint)
        await asyncio.gather(*self._closing)

    def _way(self, endpoint: EndpointId) -> _Way:
        way = self._ways.get(endpoint)
        if way is None:
            channel = open_channel(endpoint.address, self._tls, Role.WORKER, _options())
            relay = Relay(channel, lambda: self._tickets.proof(endpoint.pod_uid)) if self._carries else None
            way = self._ways[endpoint] = _Way(channel, relay)
        return way

    def _close_retired(self, way: _Way) -> None:
        for handle in [handle for handle, (_, known) in self._retired.items() if known is way]:
            handle.cancel()
            del self._retired[handle]
        self._close(way)

    def _close(self, way: _Way) -> None:
        task = asyncio.get_running_loop().create_task(way.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _options() -> list[tuple[str, int]]:
    ours = {
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES + MAX_IMAGES_BYTES + _SPARE_BYTES,
        # A relay's message has answers of 64 KiB and one more.
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES + _SPARE_BYTES,
        "grpc.min_reconnect_backoff_ms": _CONNECT_TIMEOUT_MS,
        **_KEEPALIVE,
    }
    return list((dict(channel_options()) | ours).items())
