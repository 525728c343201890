"""An engine process's end of the socket: frames of messages, read without waiting longer than asked."""

from __future__ import annotations

import logging
import select
import socket

from dormouse_worker.common.frames import FrameSplitter, decode_front, encode_frame
from dormouse_worker.common.ipc import EngineMessage, FrontMessage

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 16


class SocketTransport:
    """Implements `engine.loop.Transport` over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._splitter = FrameSplitter()

    def receive(self, timeout_s: float) -> list[FrontMessage] | None:
        """See `Transport`. A frame that cannot be decoded ends the connection: the stream is broken."""
        messages: list[FrontMessage] = []
        while self._is_readable(timeout_s):
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError:
                return None
            if not data:
                return None
            for payload in self._splitter.feed(data):
                messages.extend(decode_front(payload))
            timeout_s = 0.0
        return messages

    def send(self, message: EngineMessage) -> None:
        """See `Transport`."""
        try:
            self._socket.sendall(encode_frame([message]))
        except OSError as error:
            logger.warning("the front is gone: %s", error)

    def _is_readable(self, timeout_s: float) -> bool:
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(readable)
