"""How much memory requests with images or sound may take in this gateway. Those without are too small to count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from dormouse_api.status import CallError
from dormouse_gateway.clients.salts import Salts
from dormouse_gateway.kept_images import KeptImages

DEFAULT_BYTES = 256 << 20
_RETRY_S = 1.0


class ImageRoom:
    """Owns the count. A request takes room for as long as its bytes are kept; images of earlier ones have their own."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES, kept_bytes: int = 0, salts: Salts | None = None) -> None:
        """Start empty. `kept_bytes`, and whose they are, is of images that are kept after their request."""
        self.kept = KeptImages(kept_bytes, salts or Salts())
        self._limit_bytes = limit_bytes
        self.num_bytes = 0

    def __repr__(self) -> str:
        """Show how full it is."""
        return f"ImageRoom({self.num_bytes} of {self._limit_bytes} bytes)"

    @contextmanager
    def taken(self, num_bytes: int) -> Iterator[None]:
        """Take so much. Raises CallError RESOURCE_EXHAUSTED, INVALID_ARGUMENT for what never fits."""
        if num_bytes > self._limit_bytes:
            limit = f"at most {self._limit_bytes} bytes (DORMOUSE_MAX_IMAGE_BYTES)"
            raise CallError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"a request with images or sound of {num_bytes} bytes; allowed: {limit}",
            )
        if num_bytes + self.num_bytes > self._limit_bytes:
            words = (
                f"requests with images or sound of {self.num_bytes} bytes are under way and this one has {num_bytes}"
            )
            limit = f"the limit is {self._limit_bytes} bytes (DORMOUSE_MAX_IMAGE_BYTES)"
            raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{words}; {limit}", _RETRY_S)
        self.num_bytes += num_bytes
        try:
            yield
        finally:
            self.num_bytes -= num_bytes
