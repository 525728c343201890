"""Where weights come from, and how they get into host memory: by several threads, window by window, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from dormouse_worker.model.checksum import BLOCK_BYTES, Checksum, combine
from dormouse_worker.model.weights.layout import Slot, WeightLayout
from dormouse_worker.model.weights.windows import Piece, Window

Read = Callable[[Slot, int, int, torch.Tensor], None]
NUM_THREADS = max(2, min(8, os.cpu_count() or 2))  # one thread is bound by its core, and leaves a disk idle
DEPTH = NUM_THREADS + 2  # windows under way at a time: no thread waits for its next one


class WeightSource(Protocol):
    """Gives the same weights as often as it is opened, or says that they changed."""

    @property
    def path(self) -> Literal["fast", "transformers"]:
        """Return whose code reads: ours, or transformers' with all of its conversions."""

    def open(self) -> AbstractContextManager[Read]:
        """Return `read(slot, start, end, target)`, which many threads may call.

        It fills `target`, uint8 [end - start] in host memory, with these bytes of the tensor. Opening and reading raise
        ModelNotFound, ModelInvalid, ModelChanged, …; nothing stays open.
        """


@dataclass(frozen=True, slots=True)
class Contents:
    """What a module's memory shall hold."""

    layout: WeightLayout
    source: WeightSource
    extras: Mapping[str, torch.Tensor]  # what no source has: small buffers that are computed


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How one load went."""

    num_bytes: int
    seconds: float
    format: str
    path: Literal["fast", "transformers"]

    def __str__(self) -> str:
        gigabytes = self.num_bytes / 1e9
        return f"{gigabytes:.2f} GB in {self.seconds:.2f} s, {self.gb_per_s:.2f} GB/s ({self.format}, {self.path})"

    @property
    def gb_per_s(self) -> float:
        """Return the rate in 10**9 bytes per second."""
        return self.num_bytes / 1e9 / max(self.seconds, 1e-9)


def with_extras(read: Read, extras: Mapping[str, torch.Tensor]) -> Read:
    """Return a `read` that takes tensors which no source has, such as buffers that are computed, from host memory."""

    def read_any(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
        extra = extras.get(slot.name)
        if extra is None:
            read(slot, start, end, target)
        else:
            target.copy_(as_bytes(extra)[start:end])

    return read_any


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as uint8 [n]; a view if it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def stream(
    windows: Collection[Window],
    read: Read,
    place: Callable[[int, Window], torch.Tensor],
    deliver: Callable[[Window, torch.Tensor], None],
    tell: Callable[[int], None],
) -> dict[str, int]:
    """Read and deliver all windows; return the checksum of each tensor by its name.

    `place(i, window)` says where in host memory the i-th window is read to; it may give the same memory to two windows
    that are DEPTH or more apart. `deliver` is called by the thread that read, which still has the bytes in its
    processor's cache: by several at a time, in any order. `tell(end)` is called in order, by this thread: all windows
    up to `end` are delivered. When this raises, no thread writes any more.
    """
    sums: dict[str, list[int]] = {}
    under_way: deque[tuple[Window, Future[list[int]]]] = deque()

    def finish() -> None:
        window, future = under_way.popleft()
        for piece, part in zip(window.pieces, future.result(), strict=True):
            sums.setdefault(piece.slot.name, []).append(part)
        tell(window.end)

    def bring(window: Window, target: torch.Tensor) -> list[int]:
        parts = _read_window(read, window, target)
        deliver(window, target)
        return parts

    pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="weights")
    try:
        for i, window in enumerate(windows):
            if len(under_way) == DEPTH:
                finish()
            under_way.append((window, pool.submit(bring, window, place(i, window))))
        while under_way:
            finish()
    finally:
        pool.shutdown(cancel_futures=True)
    return {name: combine(parts) for name, parts in sums.items()}


def _read_window(read: Read, window: Window, target: torch.Tensor) -> list[int]:
    return [
        _read_piece(read, piece, target[piece.slot.offset + piece.start - window.start :]) for piece in window.pieces
    ]


def _read_piece(read: Read, piece: Piece, target: torch.Tensor) -> int:
    """Read and sum up block by block: each is still in the processor's cache when it is summed up."""
    sums = Checksum(piece.start // BLOCK_BYTES)
    for start in range(piece.start, piece.end, BLOCK_BYTES):
        end = min(start + BLOCK_BYTES, piece.end)
        block = target[start - piece.start : end - piece.start]
        read(piece.slot, start, end, block)
        sums.add(block)
    return sums.value
