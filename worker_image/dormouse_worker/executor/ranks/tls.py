"""TLS between a leader and the ranks of other pods, where pods have certificates: each must be of the same deployment.

Certificates are those of the front, see `dormouse_api.mutual_tls`; every connection takes them as they are on disk when
it begins. Without a directory of certificates connections are plain.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dormouse_api.identity import BadIdentity, Identity, identity_among, server_name
from dormouse_api.names import Role

DIRECTORY_VARIABLE = "DORMOUSE_MUTUAL_TLS_DIR"
WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsStream:
    """A TLS connection that one thread reads while others write: OpenSSL itself allows one of them at a time."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        """The handshake is done."""
        connection.settimeout(0.0)  # never blocks: nobody waits with the lock in hand but who writes
        self._socket = connection
        self._using = threading.Lock()

    def __enter__(self) -> TlsStream:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self._socket.close()

    @property
    def family(self) -> int:
        """See `socket.socket`."""
        return self._socket.family

    def fileno(self) -> int:
        """See `socket.socket`."""
        return self._socket.fileno()

    def getsockname(self) -> Any:
        """See `socket.socket`."""
        return self._socket.getsockname()

    def recv(self, num_bytes: int) -> bytes:
        """See `socket.socket`; blocks. Raises OSError."""
        while True:
            try:
                with self._using:
                    return self._socket.recv(num_bytes)
            except WAITS as wait:
                self._await(wait)

    def sendall(self, data: bytes) -> None:
        """See `socket.socket`; blocks. Raises OSError."""
        left = memoryview(data)
        with self._using:
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except WAITS as wait:
                    self._await(wait)

    def _await(self, wait: OSError) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN if isinstance(wait, ssl.SSLWantReadError) else select.POLLOUT)
        poll.poll()


Stream = socket.socket | TlsStream  # to a leader


@dataclass(frozen=True, slots=True)
class RankTls:
    """What this pod proves itself with."""

    directory: Path

    def accept(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return the leader's end; the handshake is done by its first reads. Raises OSError without a certificate."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def connect(self, connection: socket.socket) -> TlsStream:
        """Return the rank's end, connected to a leader of its own deployment. Raises OSError; it is closed then."""
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            context = self._context(ssl.PROTOCOL_TLS_CLIENT)
            wrapped = context.wrap_socket(connection, server_hostname=server_name(Role.WORKER))
            undo.callback(wrapped.close)
            if stranger := self.complaint(wrapped):
                raise ConnectionError(f"the leader {stranger}")
            undo.pop_all()
        return TlsStream(wrapped)

    def complaint(self, peer: ssl.SSLSocket) -> str:
        """Return why the other end, whose handshake is done, does not belong to our deployment; "" if it does."""
        shown: Any = peer.getpeercert() or {}
        try:
            theirs = identity_among([value for _, value in shown.get("subjectAltName", ())])
        except BadIdentity as error:
            return f"shows a certificate that says: {error}"
        own = self._identity()
        return "" if theirs == own else f"is {theirs} by its certificate; this pod is {own}"

    def _identity(self) -> Identity:
        """Return whose certificate lies in the directory. Raises OSError."""
        from dormouse_api.mutual_tls import TlsError, read_bundle  # imports gRPC

        try:
            return read_bundle(self.directory).identity
        except TlsError as error:
            raise ConnectionError(str(error)) from error

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.directory / "tls.crt", self.directory / "tls.key")
        context.load_verify_locations(self.directory / "ca.crt")
        return context


def tls_of(environ: Mapping[str, str]) -> RankTls | None:
    """Return what the pod proves itself with, None where it has no certificate."""
    directory = environ.get(DIRECTORY_VARIABLE, "")
    return RankTls(Path(directory)) if directory else None
