"""An adapter on its way into a host copy. It is read in pieces, between passes of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dormouse_worker.common.errors import AdapterNotFound
from dormouse_worker.files.adapter_files import check_adapter_files
from dormouse_worker.model.adapters.layout import AdapterLayout
from dormouse_worker.model.adapters.read import read_adapter, slot_checksum
from dormouse_worker.model.pieces import Pause, Pieces

PATIENCE_S = 0.002  # how much longer than its time a read is waited for: storage may not answer
STALL_S = 60.0  # storage that does not answer for so long fails an adapter: other orders wait for it


@dataclass(frozen=True, slots=True)
class Place:
    """A host copy that nobody has."""

    number: int
    copy: torch.Tensor  # uint8 [slot_bytes]


@dataclass(frozen=True, slots=True)
class Found:
    """What was read."""

    digest: str
    rank: int
    place: Place | None  # where it lies; None = there was none for it
    checksum: int = 0
    invocation: tuple[int, ...] = ()  # see `AdapterInfo`
    num_virtual_tokens: int = 0
    has_keys: bool = False


class ComingAdapter:
    """Reads one adapter. Where it has no place its digest alone: it may be one that is here."""

    def __init__(
        self,
        path: Path,
        layout: AdapterLayout,
        place: Place | None,
        *,
        max_rank: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._clock = clock
        self._answered_s = clock()
        self._layout = layout
        self._place = place
        self._max_rank = max_rank
        self._pieces: Pieces[Found] = Pieces(self._read, name="adapter")

    def __repr__(self) -> str:
        return f"ComingAdapter({self.path}, {self._pieces!r})"

    def advance(self, seconds: float) -> Found | None:
        """Read for so long, and some milliseconds at most; None = there is more. Raises as `AdapterStore.add`."""
        if self._pieces.advance(seconds, patience_s=PATIENCE_S):
            return self._pieces.finish()
        if not self._pieces.is_out:
            self._answered_s = self._clock()
        if self._clock() - self._answered_s >= STALL_S:
            self.leave()
            raise self.stall()
        return None

    def stall(self) -> AdapterNotFound:
        """Return why nobody waits for it any more."""
        return AdapterNotFound(
            f"{self.path}: its storage has not answered for {STALL_S:g} s; mend it, or move the files"
        )

    @property
    def is_stuck(self) -> bool:
        """Return whether it may write into its place, though it was left."""
        return self._pieces.has_thread

    def holds(self, number: int) -> bool:
        """Return whether this host copy is its place."""
        return self._place is not None and self._place.number == number

    def leave(self) -> None:
        """Drop it."""
        self._pieces.leave()

    def _read(self, pause: Pause) -> Found:
        layout = self._layout
        files = check_adapter_files(
            self.path,
            layout.whole,
            max_rank=self._max_rank,
            vocab_size=layout.vocab_size,
            room=layout.room,
            pause=pause,
        )
        pause()
        if self._place is None:
            return Found(files.read(lambda *_: pause()), files.rank, None)
        digest = read_adapter(files, layout, self._place.copy, pause)
        checksum = slot_checksum(self._place.copy, pause)
        return Found(
            digest,
            files.rank,
            self._place,
            checksum,
            files.invocation,
            files.num_virtual_tokens,
            has_keys=files.has_keys,
        )
