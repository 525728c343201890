"""Reads windows by several threads, each of which takes the next one once it has handed on its last.

Nobody gives the threads their work: waking a thread for every window took as long as summing the window up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from dormouse_worker.model.checksum import BLOCK_BYTES, checksum, combine
from dormouse_worker.model.tensors import Tensor
from dormouse_worker.model.weights.arrival import Tell
from dormouse_worker.model.weights.source import Read
from dormouse_worker.model.weights.windows import Piece, Window

_MOST_THREADS = max(2, min(8, os.cpu_count() or 2))  # one thread is bound by its core, and leaves a disk idle


class _Course:
    """Owns what the threads share: which window is next, up to where all are done, the checksums."""

    def __init__(self, windows: Sequence[Window], tell: Tell) -> None:
        self._windows = windows
        self._tell = tell
        self._lock = threading.Lock()
        self._num_taken = 0
        self._num_told = 0
        self._done: set[int] = set()  # of those not told
        self._parts: dict[str, list[int]] = {}
        self._is_over = False

    def __repr__(self) -> str:
        return f"_Course({self._num_taken} of {len(self._windows)} windows taken, told of {self._num_told})"

    def take(self) -> Iterator[tuple[int, Window]]:
        """Yield the next window that nobody has taken, as long as there are any and nobody has ended the course."""
        while True:
            with self._lock:
                number = self._num_taken
                if self._is_over or number == len(self._windows):
                    return
                self._num_taken += 1
            yield number, self._windows[number]

    def note(self, number: int, parts: Sequence[int]) -> None:
        """Count a window as done, with the checksums of its pieces."""
        with self._lock:
            for piece, part in zip(self._windows[number].pieces, parts, strict=True):
                self._parts.setdefault(piece.slot.name, []).append(part)
            self._done.add(number)
            before = self._num_told
            while self._num_told in self._done:
                self._done.remove(self._num_told)
                self._num_told += 1
            if self._num_told > before:
                self._tell(self._windows[self._num_told - 1].end)

    def end(self) -> None:
        """Let nobody take another window."""
        self._is_over = True

    def checksums(self) -> dict[str, int]:
        """Return those of the tensors, by name, in the order of the windows. Once all of these are done."""
        names = dict.fromkeys(piece.slot.name for window in self._windows for piece in window.pieces)
        return {name: combine(self._parts[name]) for name in names}


def num_threads(windows: Sequence[Window]) -> int:
    """Return how many threads read these windows."""
    return max(1, min(_MOST_THREADS, len(windows)))


def stream(
    windows: Sequence[Window],
    read: Read,
    place: Callable[[int, Window], Tensor],
    deliver: Callable[[Window, Tensor], None],
    tell: Tell,
) -> dict[str, int]:
    """Read and deliver all windows; return the checksum of each tensor by its name.

    `place(thread, window)` says where in host memory the n-th of `num_threads` reads a window to; it may be the same
    memory for all windows of a thread. `deliver` is called by the thread that read, which still has the bytes in its
    processor's cache: by several at a time, in any order. `tell(end)` is called by one of them at a time, with ends
    that grow: all windows up to `end` are delivered. When this raises, no thread writes any more;
    where several failed, it is what one of them raised.
    """
    course = _Course(windows, tell)

    def work(thread: int) -> None:
        try:
            for number, window in course.take():
                target = place(thread, window)
                parts = _read_window(read, window, target)
                deliver(window, target)
                course.note(number, parts)
        finally:
            course.end()  # nothing is left, or nobody wants the rest

    count = num_threads(windows)
    with ThreadPoolExecutor(count, thread_name_prefix="weights") as pool:
        try:
            for done in [pool.submit(work, thread) for thread in range(count)]:
                done.result()
        finally:
            course.end()
    return course.checksums()


def _read_window(read: Read, window: Window, target: Tensor) -> list[int]:
    return [
        _read_piece(read, piece, target[piece.slot.offset + piece.start - window.start :]) for piece in window.pieces
    ]


def _read_piece(read: Read, piece: Piece, target: Tensor) -> int:
    """Read and sum up block by block: each is still in the processor's cache when it is summed up."""
    parts = []
    for start in range(piece.start, piece.end, BLOCK_BYTES):
        end = min(start + BLOCK_BYTES, piece.end)
        block = target[start - piece.start : end - piece.start]
        read(piece.slot, start, end, block)
        parts.append(checksum(block, start // BLOCK_BYTES))
    return combine(parts)
