"""A name service that says what a test wants: nothing, that there is no such name, or an address."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path

_PORT = 53
_MOUNT = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
_HEADER = struct.Struct("!6H")  # id, flags, counts of questions, answers, authorities, additional
_ANSWER, _NO_ERROR, _NO_SUCH_NAME = 0x8180, 0, 3
_TYPE_A, _CLASS_IN = 1, 1
_END = b""  # no question


class NameService:
    """Says the same of every name; silent at first."""

    def __init__(self, listener: socket.socket, folder: Path) -> None:
        """Take the socket where questions arrive, and a folder for what names it."""
        self._listener = listener
        self._resolv_conf = folder / "resolv.conf"
        self._resolv_conf.write_text(f"nameserver {listener.getsockname()[0]}\n", "ascii")
        self._questions: list[bytes] = []
        self._asked = threading.Condition()
        self._is_silent = True
        self._address: IPv4Address | None = None

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[NameService]:
        """Listen on any free address of loopback while the context lasts."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            _bind(listener)
            service = cls(listener, folder)
            thread = threading.Thread(target=service._serve, name="names")
            thread.start()
            try:
                yield service
            finally:
                listener.sendto(_END, listener.getsockname())
                thread.join()

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return what starts a program that asks here."""
        return ("unshare", "--mount", "sh", "-c", _MOUNT, str(self._resolv_conf))

    def deny(self) -> None:
        """Say from now on that there is no such name."""
        self._is_silent, self._address = False, None

    def tell(self, address: str) -> None:
        """Say this address from now on."""
        self._is_silent, self._address = False, IPv4Address(address)

    def num_asked(self, label: str) -> int:
        """Return how often somebody asked for a name with this label, of whatever type."""
        return sum(label.encode() in question for question in self._questions)

    def await_questions(self, label: str, count: int, *, timeout_s: float) -> None:
        """Wait until somebody asked so often for a name with this label."""
        with self._asked:
            assert self._asked.wait_for(lambda: self.num_asked(label) >= count, timeout_s), self._questions

    def _serve(self) -> None:
        while True:
            question, whence = self._listener.recvfrom(4096)
            if question == _END:
                return
            with self._asked:
                self._questions.append(question)
                self._asked.notify_all()
            if not self._is_silent:
                self._listener.sendto(_answer(question, self._address), whence)


def _answer(message: bytes, address: IPv4Address | None) -> bytes:
    """Return the answer to one question: the address if it asks for one of IPv4, no address of another kind."""
    end = message.index(0, _HEADER.size) + 1  # of the name
    kind = int.from_bytes(message[end : end + 2])
    record = b""
    if address and kind == _TYPE_A:
        name_of_the_question = 0xC000 | _HEADER.size
        record = struct.pack("!HHHIH4s", name_of_the_question, _TYPE_A, _CLASS_IN, 0, 4, address.packed)
    flags = _ANSWER | (_NO_ERROR if address else _NO_SUCH_NAME)
    header = _HEADER.pack(int.from_bytes(message[:2]), flags, 1, int(bool(record)), 0, 0)
    return header + message[_HEADER.size : end + 4] + record


def _bind(listener: socket.socket) -> None:
    """Listen on port 53 of an address of loopback where nobody else does: tests may run beside each other."""
    for last in range(1, 255):
        with suppress(OSError):
            listener.bind((f"127.53.53.{last}", _PORT))
            return
    raise AssertionError("every address is taken")
