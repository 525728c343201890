"""Standard output and error that hold nobody up: what a program says is written by a thread of its own.

Whoever shall read it may have gone, or read no more: a pipe to `head`, a terminal that is stopped, a log collector that
hangs. What is said meanwhile waits within a limit; beyond it is lost, and how much is told.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_BYTES = 1 << 20  # that wait to be read; thousands of lines
LAST_STANDARD_FD = 2
LAST_WORDS_S = 1.0  # that a reader who takes nothing is waited for at the program's end


class Outlet(io.RawIOBase):
    """Writes to a file descriptor; never waits and never fails, for whoever writes. Does not own the descriptor."""

    def __init__(self, fd: int, *, most_bytes: int = MOST_BYTES) -> None:
        """Start the thread that writes; it is a daemon, as it may wait for ever."""
        self._fd = fd
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()  # the first one is being written
        self._waiting_bytes = 0
        self._lost_bytes = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name=f"outlet-{fd}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Outlet({self._fd}, waiting={self._waiting_bytes}, lost={self._lost_bytes})"

    def writable(self) -> bool:
        """See RawIOBase."""
        return True

    def fileno(self) -> int:
        """See RawIOBase."""
        return self._fd

    def isatty(self) -> bool:
        """See RawIOBase."""
        return os.isatty(self._fd)

    def write(self, data: ReadableBuffer, /) -> int:
        """Leave it to the thread, or lose it if too much waits; return its length."""
        piece = bytes(data)
        with self._changed:
            if self._waiting_bytes + len(piece) > self._most_bytes:
                self._lost_bytes += len(piece)
            else:
                self._take(piece)
        return len(piece)

    def finish(self, timeout_s: float = LAST_WORDS_S) -> None:
        """End the thread once all is written; wait for that, but for a reader who takes nothing no longer than this."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        room = select.poll()
        room.register(self._fd, select.POLLOUT)
        self._thread.join(timeout_s)
        while self._thread.is_alive() and room.poll(0):  # a busy machine: the thread had no turn
            self._thread.join(timeout_s)

    def _take(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        self._changed.notify_all()

    def _write_all(self) -> None:
        while piece := self._next():
            with suppress(OSError):  # nobody reads, or the disk is full: that is theirs
                self._write_out(piece)
            with self._changed:
                self._waiting_bytes -= len(self._waiting.popleft())

    def _next(self) -> bytes:
        """Return the first piece once there is one, nothing at the end; say first what was lost."""
        with self._changed:
            if self._lost_bytes and not self._waiting:
                self._take(b"(%d bytes were lost: nobody read them)\n" % self._lost_bytes)
                self._lost_bytes = 0
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            return self._waiting[0] if self._waiting else b""

    def _write_out(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # whoever shares the descriptor set it so
                select.select([], [self._fd], [])


@contextmanager
def unhindered_outputs() -> Iterator[None]:
    """Let nothing that this process prints or logs within the block wait for a reader, or fail without one."""
    fill_standard_descriptors()
    before = sys.stdout, sys.stderr
    outlets = [Outlet(fd if stream is None else stream.fileno()) for fd, stream in zip((1, 2), before, strict=True)]
    sys.stdout, sys.stderr = map(_text, outlets, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for outlet in outlets:
            outlet.finish()


def fill_standard_descriptors() -> None:
    """Open on nothing what is closed of standard input, output and error: a socket would take its number otherwise."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD_FD:
        os.set_inheritable(fd, True)  # noqa: FBT003  # named so in its signature only
    os.close(fd)


def _text(outlet: Outlet, like: TextIO | None) -> TextIO:
    raw = io.BufferedWriter(outlet)  # keeps what belongs together until a line is whole
    encoding, errors = (like.encoding, like.errors) if like else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(raw, encoding, errors, line_buffering=True)
