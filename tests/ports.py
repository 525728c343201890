"""Ports for programs that a test starts, which nobody else takes before they listen; and networks of loopback.

The kernel hands out ports from 32768 on by itself, also to whoever connects: a port from there that is free now may be
taken before a program listens on it. Other processes of tests are kept away by a lock on the port's number.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST, END = 20000, 30000  # below Kubernetes' node ports, and those below the kernel's


class Numbers:
    """Gives each number of a range once, and none that another process of tests was given and may still use."""

    def __init__(self, book: Path, numbers: range) -> None:
        """Take the file in which processes of tests lock what they were given, and the numbers to give."""
        self._book = book
        self._left = list(numbers)
        random.SystemRandom().shuffle(self._left)  # not `random`, which begins alike in every test
        self._fd: int | None = None

    def take(self) -> int:
        """Return a number. Raises IndexError if none is left."""
        while not self._is_ours(number := self._left.pop()):
            pass
        return number

    def _is_ours(self, number: int) -> bool:
        """Lock the number's byte of the book until this process ends; return whether no other process has it."""
        if self._fd is None:
            self._fd = os.open(self._book, os.O_RDWR | os.O_CREAT)  # never closed: that would give back all locks
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError:
            return False
        return True


class Ports(Numbers):
    """The same with ports of loopback on which nobody listens."""

    def __init__(self, book: Path, ports: range = range(LOWEST, END)) -> None:
        super().__init__(book, ports)

    def take(self) -> int:
        """Return a port. Raises IndexError if none is left."""
        while not is_free(port := super().take()):
            pass
        return port

    def take_pair(self) -> int:
        """Return the first of two ports, one after the other."""
        while True:
            port = self.take()
            if port + 1 in self._left and self._is_ours(port + 1) and is_free(port + 1):
                self._left.remove(port + 1)
                return port


def is_free(port: int) -> bool:
    """Return whether one can listen on a port of loopback."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _book(name: str) -> Path:
    return Path(tempfile.gettempdir(), f"dormouse-test-{name}-{os.getuid()}")


_PORTS = Ports(_book("ports"))
free_port = _PORTS.take
free_port_pair = _PORTS.take_pair
free_network = Numbers(_book("networks"), range(64, 127)).take  # N of 127.N.*.*
