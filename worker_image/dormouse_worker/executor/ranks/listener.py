"""Where the leader's ranks come in: a unix socket for its own pod's, a port of the pod's address for the others'.

Open only until every rank is there, so that a late one finds the door closed and tries again later.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dormouse_worker.common.errors import GroupPortTaken, RankMissing
from dormouse_worker.executor.ranks.admission import Expected, describe, refusal_of
from dormouse_worker.executor.ranks.connection import RankConnection
from dormouse_worker.executor.ranks.messages import Hello, Refusal
from dormouse_worker.executor.ranks.tls import RankTls

logger = logging.getLogger(__name__)

LOOK_PERIOD_S = 0.2  # between two looks at the processes that must come
HELLO_TIMEOUT_S = 10.0  # who says nothing for so long is hung up on
MAX_STRANGERS = 64  # connections that have not said hello
KEEP_ALIVE_S = 20  # a machine that is gone says nothing: the kernel notices


class Children(Protocol):
    """The ranks that this pod has started itself."""

    def check(self) -> None:
        """Raise RankLost if one has ended."""


class RankDoor:
    """Owns the listening sockets and, until they are handed over, the connections."""

    def __init__(
        self,
        listeners: list[socket.socket],
        expected: Expected,
        clock: Callable[[], float],
        tls: RankTls | None = None,
    ) -> None:
        """With `tls` ranks of other pods prove that they are of the same deployment."""
        self._expected = expected
        self._clock = clock
        self._tls = tls
        self._selector = selectors.DefaultSelector()
        self._listeners = listeners
        self._strangers: list[RankConnection] = []
        self._admitted: dict[int, RankConnection] = {}
        self._refused: dict[str, None] = {}  # why, in order of the first time
        for listener in listeners:
            listener.settimeout(0.0)  # never blocks
            self._selector.register(listener, selectors.EVENT_READ)

    def __repr__(self) -> str:
        return f"RankDoor({sorted(self._admitted)} of {self._expected.world_size})"

    def admit_all(self, timeout_s: float, children: Children) -> dict[int, RankConnection]:
        """Wait until every rank is there and return them. Raises RankMissing naming those that are not, RankLost."""
        deadline_s = self._clock() + timeout_s
        while missing := sorted(set(range(self._expected.world_size)) - set(self._admitted)):
            children.check()
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                raise RankMissing(self._why_missing(missing, timeout_s))
            for key, _ in self._selector.select(min(left_s, LOOK_PERIOD_S)):
                self._look_at(key.fileobj)
            self._forget_silent()
        admitted, self._admitted = self._admitted, {}
        return dict(sorted(admitted.items()))

    def close(self) -> None:
        """Listen no more and hang up on everybody who was not handed over."""
        self._selector.close()
        for listener in self._listeners:
            listener.close()
        for connection in (*self._strangers, *self._admitted.values()):
            connection.close()

    def _look_at(self, source: object) -> None:
        if isinstance(source, socket.socket):
            self._accept(source)
        elif isinstance(source, RankConnection):
            self._hear(source)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted = self._secured(listener.accept()[0])
        except OSError as error:  # gone again
            logger.warning("a rank came and went: %s", error)
            return
        if len(self._strangers) >= MAX_STRANGERS:
            accepted.close()
            return
        connection = RankConnection(accepted, self._clock)
        self._strangers.append(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _secured(self, accepted: socket.socket) -> socket.socket:
        """Return the connection as it is to be used; one of this pod is as good as a child. Raises OSError."""
        if accepted.family == socket.AF_UNIX:
            return accepted
        tune(accepted)
        return self._tls.accept(accepted) if self._tls else accepted

    def _hear(self, connection: RankConnection) -> None:
        for message in connection.receive():
            if isinstance(message, Hello) and connection in self._strangers:
                self._judge(connection, message)
        if connection.has_ended:
            self._forget(connection)

    def _judge(self, connection: RankConnection, hello: Hello) -> None:
        refusal = self._stranger(connection, hello) or refusal_of(hello, self._expected, self._admitted)
        if refusal:
            logger.error("refused %s", refusal)
            self._refused[refusal] = None
            connection.say(Refusal(refusal))
            connection.has_ended = True
            return
        connection.name, connection.pod = describe(hello.rank, hello.pod), hello.pod
        logger.info("%s is there", connection.name)
        self._strangers.remove(connection)
        self._admitted[hello.rank] = connection

    def _stranger(self, connection: RankConnection, hello: Hello) -> str:
        if self._tls is None or not isinstance(connection.stream, ssl.SSLSocket):
            return ""
        complaint = self._tls.complaint(connection.stream)
        return complaint and f"{describe(hello.rank, hello.pod)} {complaint}"

    def _forget_silent(self) -> None:
        for stranger in list(self._strangers):
            if self._clock() - stranger.heard_s > HELLO_TIMEOUT_S:
                self._forget(stranger)

    def _forget(self, connection: RankConnection) -> None:
        """Drop who has gone; a rank that was admitted already may come again."""
        self._selector.unregister(connection)
        connection.close()
        if connection in self._strangers:
            self._strangers.remove(connection)
        self._admitted = {rank: known for rank, known in self._admitted.items() if known is not connection}

    def _why_missing(self, missing: list[int], timeout_s: float) -> str:
        ranks = ", ".join(map(str, missing))
        why = f"of {self._expected.world_size} ranks these did not come within {timeout_s:g} s: {ranks}"
        return f"{why}; refused: {'; '.join(self._refused)}" if self._refused else why


def listen_unix(path: Path) -> socket.socket:
    """Return a listening unix socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this very address. Raises GroupPortTaken, or OSError for a name without one."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise GroupPortTaken(
            f"rank 0's pod cannot listen on {host} port {port} for the other ranks (--master-port + 1): {error}"
        ) from error
    return listener


def tune(connection: socket.socket) -> None:
    """Send small frames at once, and notice a peer whose machine is gone; both mean TCP only."""
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, KEEP_ALIVE_S * 1000)
