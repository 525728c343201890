"""A rank's end of the connection to its leader: orders in, answers and signs of life out, and the end of the leader."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dormouse_worker.common.exit_codes import EXIT_LEADER_GONE
from dormouse_worker.common.frames import FrameSplitter
from dormouse_worker.executor.ranks.listener import tune
from dormouse_worker.executor.ranks.messages import Beat, LeaderMessage, RankMessage, decode_leader, encode
from dormouse_worker.executor.ranks.tls import RankTls, Stream

logger = logging.getLogger(__name__)

BEAT_PERIOD_S = 1.0
RETRY_PERIOD_S = 0.2  # between two attempts to reach a leader that is not there yet
CONNECT_TIMEOUT_S = 5.0  # of one attempt
RECEIVE_BYTES = 1 << 18
LAST_MOMENT_S = 1.0  # what an order gets to end by itself once the leader is gone


class LeaderGone(Exception):
    """The leader hung up, or cannot be reached."""


class LeaderLine:
    """Owns a connected stream socket. `say` may be called from several threads, `receive` from one."""

    def __init__(self, connection: Stream) -> None:
        self._socket = connection
        self._splitter = FrameSplitter()
        self._inbox: list[LeaderMessage] = []
        self._sending = threading.Lock()

    def __repr__(self) -> str:
        return f"LeaderLine({self._socket!r}, {len(self._inbox)} orders)"

    def say(self, message: RankMessage) -> None:
        """Send one message; a leader that is gone is noticed by `receive`."""
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            logger.warning("the leader is gone: %s", error)

    def receive(self) -> LeaderMessage:
        """Wait for the next message. Raises LeaderGone, also for what cannot be decoded: the stream is broken."""
        while not self._inbox:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
                self._inbox += [decode_leader(payload) for payload in self._splitter.feed(data)]
            except (OSError, ValueError, msgspec.DecodeError) as error:
                raise LeaderGone(f"the connection to the leader broke: {error}") from error
            if not data:
                raise LeaderGone("the leader hung up")
        return self._inbox.pop(0)

    def start_beating(self) -> None:
        """Give signs of life from now on, from a thread of its own, and end the process with the leader.

        Even in the middle of a collective, which would wait for ranks that are gone.
        """
        threading.Thread(target=self._beat, name="rank-beat", daemon=True).start()

    def _beat(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        while not poll.poll(BEAT_PERIOD_S * 1000):
            self.say(Beat())
        time.sleep(LAST_MOMENT_S)  # an idle rank ends by itself meanwhile, and this thread with it
        logger.critical("the leader hung up in the middle of an order")
        os._exit(EXIT_LEADER_GONE)


def connect_unix(path: Path) -> socket.socket:
    """Return a connection to the leader in this pod. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    return connection


def connect_tcp(
    host: str,
    port: int,
    timeout_s: float,
    tls: RankTls | None = None,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Stream:
    """Return a connection to the leader, trying again while there is no such name, listener or proof of who it is.

    Raises LeaderGone.
    """
    deadline_s = clock() + timeout_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
            tune(connection)
            if tls:
                return tls.connect(connection)
        except OSError as error:
            if clock() >= deadline_s:
                raise LeaderGone(f"no leader at {host} port {port} for {timeout_s:g} s: {error}") from error
            sleep(RETRY_PERIOD_S)
            continue
        connection.settimeout(None)
        return connection
