"""The leader's end of one rank's connection: never blocks, neither in writing nor in reading."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable

import msgspec

from dormouse_worker.common.frames import FrameSplitter
from dormouse_worker.executor.ranks.messages import LeaderMessage, RankMessage, decode_rank, encode

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 18
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class RankConnection:
    """Owns a stream socket, what still has to be written, and when the rank was last heard of."""

    def __init__(self, connection: socket.socket, clock: Callable[[], float], name: str = "somebody") -> None:
        connection.settimeout(0.0)  # never blocks
        self._socket = connection
        self._clock = clock
        self._splitter = FrameSplitter()
        self._outbox = bytearray()
        self.name = name  # "rank 2 (pod x-1)"; who it is says its Hello
        self.pod = ""
        self.heard_s = clock()
        self.has_ended = False

    def __repr__(self) -> str:
        return f"RankConnection({self.name}, {len(self._outbox)} bytes to write, ended={self.has_ended})"

    @property
    def stream(self) -> socket.socket:
        """Return it, for who asks what the other end has shown; nobody else reads or writes."""
        return self._socket

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Return whether something waits to be written."""
        return bool(self._outbox) and not self.has_ended

    def send(self, frame: bytes) -> None:
        """Write as much as goes at once and keep the rest; nothing happens once the connection has ended."""
        self._outbox += frame
        self.flush()

    def say(self, message: LeaderMessage) -> None:
        """Send one message."""
        self.send(encode(message))

    def flush(self) -> None:
        """Write what waits, as far as it goes."""
        try:
            while self.wants_to_write:
                del self._outbox[: self._socket.send(self._outbox)]
        except NOT_NOW:
            return
        except OSError:
            self.has_ended = True

    def receive(self) -> list[RankMessage]:
        """Return what has arrived; `has_ended` tells when nothing more will. What cannot be decoded is an end too."""
        messages: list[RankMessage] = []
        try:
            while not self.has_ended and (data := self._socket.recv(RECEIVE_BYTES)):
                self.heard_s = self._clock()
                messages += [decode_rank(payload) for payload in self._splitter.feed(data)]
            self.has_ended = True
        except NOT_NOW:
            pass
        except (OSError, ValueError, msgspec.DecodeError) as error:
            logger.warning("%s: the connection broke: %s", self.name, error)
            self.has_ended = True
        return messages

    def close(self) -> None:
        """Hang up."""
        self.has_ended = True
        self._socket.close()
