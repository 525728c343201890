"""A program whose name service never answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PORT = 53
_MOUNT = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


class SilentNames:
    """Takes the questions of a name service, and answers none."""

    def __init__(self, listener: socket.socket, folder: Path) -> None:
        """Take the socket where questions arrive, and a folder for what names it."""
        self._listener = listener
        self._resolv_conf = folder / "resolv.conf"
        self._resolv_conf.write_text(f"nameserver {listener.getsockname()[0]}\n", "ascii")
        self.questions = b""

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[SilentNames]:
        """Listen on an address of loopback that nobody else uses while the context lasts."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("127.53.53.53", _PORT))
            listener.setblocking(False)
            yield cls(listener, folder)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return what starts a program that asks here."""
        return ("unshare", "--mount", "sh", "-c", _MOUNT, str(self._resolv_conf))

    def was_asked_for(self, label: str) -> bool:
        """Tell whether somebody asked for a name with this label."""
        while True:
            try:
                self.questions += self._listener.recv(4096)
            except BlockingIOError:
                return label.encode() in self.questions
