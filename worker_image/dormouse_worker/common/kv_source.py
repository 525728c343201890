"""Where blocks of a sequence may be, beside the store of this worker."""

from __future__ import annotations

import msgspec


class KvSource(msgspec.Struct, frozen=True):
    """A worker that may have them, and what lets this one ask it."""

    address: str  # host:port
    tickets: tuple[str, ...] = ()
