"""The engine process: `python -m dormouse_worker.engine_process --socket PATH`, settings as JSON on standard input.

The front listens on the unix socket, this process connects, loads, profiles and serves until the socket closes. It
dies with its parent.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import select
import signal
import socket
import sys
import time

import msgspec

from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.loop import EngineBroken, EngineLoop
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.host import Host
from dormouse_worker.ipc import EngineMessage, FrameSplitter, FrontMessage, decode_front, encode_frame
from dormouse_worker.settings import EngineSettings

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
RECEIVE_BYTES = 1 << 16
EXIT_BROKEN = 4  # forward passes fail: the front's log tells it from a crash


class SocketTransport:
    """Implements `engine.loop.Transport` over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._splitter = FrameSplitter()

    def receive(self, timeout_s: float) -> list[FrontMessage] | None:
        """See `Transport`. A frame that can not be decoded ends the connection: the stream is broken."""
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


def main(argv: list[str] | None = None) -> int:
    """Run one engine; return 0 when the front closed the socket or asked for the end, 4 when it can not compute."""
    parser = argparse.ArgumentParser(prog="dormouse_worker.engine_process", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the unix socket on which the front listens")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front drains and then ends us
    die_with_parent()
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSettings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(arguments.socket)
        try:
            _serve(settings, SocketTransport(connection))
        except EngineBroken as error:
            logger.critical("%s", error)  # the last line is what the front repeats
            return EXIT_BROKEN
    return 0


def _serve(settings: EngineSettings, transport: SocketTransport) -> None:
    executor = SingleProcessExecutor(settings, os.environ, Host())
    controller = Controller(settings, executor, send=transport.send, clock=time.monotonic)
    EngineLoop(transport, controller).run()
    executor.shutdown()  # not after EngineBroken: a device that does not compute may hang in it


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started us ends.

    A front that died before this line is noticed by `connect`, or by the closed socket at the first `receive`.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
