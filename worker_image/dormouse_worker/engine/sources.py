"""Where a request's blocks are looked for: the store here alone, or another worker beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.kv_store.interface import BlockStore


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Source:
    """A store as one request sees it."""

    store: BlockStore
    is_own: bool = True  # nobody else is asked
    close: Callable[[], None] = _nothing  # ends what is under way; may be called twice


OpenPeer = Callable[[KvSource], Source]  # connects to nobody yet
