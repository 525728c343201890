"""Connections to workers: one channel per endpoint, opened at the first call, closed when the endpoint goes."""

from __future__ import annotations

import asyncio
import logging

from grpc import aio

from dormouse_api.limits import MAX_MESSAGE_BYTES, channel_options
from dormouse_api.mutual_tls import MutualTls, open_channel
from dormouse_api.names import Role
from dormouse_gateway.model import EndpointId

_SPARE_BYTES = 64 << 10  # what the gateway adds to a request of the largest size; the worker then names the limit
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


class Channels:
    """Owns every channel. Closing happens in the background; `aclose` waits for all of it.

    A channel keeps the certificate that it was made with. With a renewed one the endpoints get new channels for new
    calls; calls that run end on the old ones, which are closed when even the longest of them has ended.
    """

    def __init__(self, tls: MutualTls | None = None) -> None:
        """Start without any. Without TLS workers are plain."""
        self._tls = tls
        self._channels: dict[EndpointId, aio.Channel] = {}
        self._retired: dict[asyncio.TimerHandle, tuple[EndpointId, aio.Channel]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        """Show the addresses."""
        return f"Channels({', '.join(sorted(endpoint.address for endpoint in self._channels))})"

    def get(self, endpoint: EndpointId) -> aio.Channel:
        """Return the endpoint's channel; opens it if there is none."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = open_channel(endpoint.address, self._tls, Role.WORKER, _options())
            self._channels[endpoint] = channel
        return channel

    def renew(self) -> None:
        """Let new calls use the certificate that is in use by now; running ones go on."""
        loop = asyncio.get_running_loop()
        for endpoint, channel in self._channels.items():
            handle = loop.call_later(RETIRED_S, self._close_retired, channel)
            self._retired[handle] = (endpoint, channel)
        _LOG.info("%d workers get new connections for new calls", len(self._channels))
        self._channels = {}

    def discard(self, endpoint: EndpointId) -> None:
        """Close the endpoint's channel soon. No error if there is none; calls on it are cancelled."""
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            self._close(channel)
        for retired in [channel for owner, channel in self._retired.values() if owner == endpoint]:
            self._close_retired(retired)

    async def aclose(self) -> None:
        """Close everything."""
        for endpoint in {*self._channels, *(owner for owner, _ in self._retired.values())}:
            self.discard(endpoint)
        await asyncio.gather(*self._closing)

    def _close_retired(self, channel: aio.Channel) -> None:
        for handle in [handle for handle, (_, known) in self._retired.items() if known is channel]:
            handle.cancel()
            del self._retired[handle]
        self._close(channel)

    def _close(self, channel: aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close(None))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _options() -> list[tuple[str, int]]:
    ours = {
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES + _SPARE_BYTES,
        "grpc.min_reconnect_backoff_ms": _CONNECT_TIMEOUT_MS,
        **_KEEPALIVE,
    }
    return list((dict(channel_options()) | ours).items())
