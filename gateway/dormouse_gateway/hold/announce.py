"""What a gRPC client learns of its request's wait: metadata at once when held, and at the end how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from grpc import aio

from dormouse_api.names import (
    METADATA_HELD,
    METADATA_HOLD_SECONDS,
    METADATA_HOLD_TIMEOUT,
    METADATA_START,
    METADATA_WAKE_SECONDS,
)
from dormouse_gateway.first_send import FirstSend
from dormouse_gateway.hold.wait import HoldTicket


async def tell_held(client: FirstSend, limit_s: float) -> None:
    """Send the initial metadata, unless it is sent: a request may wait a second time, or after its first message."""
    with suppress(aio.UsageError):
        await client.send_initial_metadata(((METADATA_HELD, "true"), (METADATA_HOLD_TIMEOUT, f"{limit_s:g}")))


@contextmanager
def told_at_the_end(
    context: Any, wait: HoldTicket, more: tuple[tuple[str, str], ...] = (), *, is_told: bool
) -> Iterator[None]:
    """Set the trailing metadata when the request ends, however it does; `more` of them, too."""
    try:
        yield
    finally:
        if is_told or more:
            context.set_trailing_metadata((*(trailers(wait) if is_told else ()), *more))


def trailers(wait: HoldTicket) -> tuple[tuple[str, str], ...]:
    """Return where the worker came from and how the time before its answer was spent."""
    return (
        (METADATA_START, wait.start),
        (METADATA_HOLD_SECONDS, f"{wait.hold_s:.6f}"),
        (METADATA_WAKE_SECONDS, f"{wait.wake_s:.6f}"),
    )
