"""Connections to workers: one channel per endpoint, opened at the first call, closed when the endpoint goes."""

from __future__ import annotations

import asyncio

from grpc import aio

from dormouse_api.limits import MAX_MESSAGE_BYTES, channel_options
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


class Channels:
    """Owns every channel. Closing happens in the background; `aclose` waits for all of it."""

    def __init__(self) -> None:
        """Start without any."""
        self._channels: dict[EndpointId, aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        """Show the addresses."""
        return f"Channels({', '.join(sorted(endpoint.address for endpoint in self._channels))})"

    def get(self, endpoint: EndpointId) -> aio.Channel:
        """Return the endpoint's channel; opens it if there is none."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = aio.insecure_channel(endpoint.address, options=_options())
        return channel

    def discard(self, endpoint: EndpointId) -> None:
        """Close the endpoint's channel soon. No error if there is none; calls on it are cancelled."""
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            task = asyncio.get_running_loop().create_task(channel.close(None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close everything."""
        for endpoint in list(self._channels):
            self.discard(endpoint)
        await asyncio.gather(*self._closing)


def _options() -> list[tuple[str, int]]:
    ours = {
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES + _SPARE_BYTES,
        "grpc.min_reconnect_backoff_ms": _CONNECT_TIMEOUT_MS,
        **_KEEPALIVE,
    }
    return list((dict(channel_options()) | ours).items())
