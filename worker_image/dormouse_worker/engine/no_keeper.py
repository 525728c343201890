"""The keeper of an engine without a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dormouse_worker.common.ipc import StoreCounts
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.engine.request import Request


class NoKeeper:
    """An engine without a store. What `BlockKeeper` does, and nothing of it."""

    def begin(self, request: Request, kv_source: KvSource | None = None) -> None:
        """See `BlockKeeper`."""

    def cancel(self, request_ids: Iterable[str]) -> None:
        """See `BlockKeeper`."""

    def turn(self) -> None:
        """See `BlockKeeper`."""

    def save_evicted(self) -> None:
        """See `BlockKeeper`."""

    def note_pass(self, num_tokens: int, seconds: float) -> None:
        """See `BlockKeeper`."""

    def forget(self, request: Request) -> None:
        """See `BlockKeeper`."""

    def clear(self) -> None:
        """See `BlockKeeper`."""

    def leave(self, *, is_leaving: bool, to_peers: bool = False) -> None:
        """See `BlockKeeper`."""

    def hand_on(self, departing: Sequence[Request] = ()) -> list[str]:
        """See `BlockKeeper`: nobody departs."""
        del departing
        return []

    def hand_over(self) -> None:
        """See `BlockKeeper`."""

    def save_some(self) -> None:
        """See `BlockKeeper`."""

    def save_all(self, timeout_s: float) -> None:
        """See `BlockKeeper`."""

    def take_counts(self) -> StoreCounts | None:
        """See `BlockKeeper`."""
