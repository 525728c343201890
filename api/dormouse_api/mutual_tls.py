"""What one process proves itself with, and how it finds out whom it speaks to: one certificate for both directions.

Certificates live for hours. A new one serves every connection that is made from then on; connections that are open go
on with the one that they began with, so that no request is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from dormouse_api.identity import CA_FILE, CERT_FILE, KEY_FILE, BadIdentity, Identity, identity_among, server_name
from dormouse_api.names import Role

RELOAD_INTERVAL_S = 5.0  # between two looks at the files: the kubelet itself takes up to a minute to bring a change

_LOG = logging.getLogger(__name__)


class TlsError(RuntimeError):
    """There is no certificate that could be used; the message names the files or the identity, and why."""


@dataclass(frozen=True, slots=True, repr=False)
class Bundle:
    """A certificate with its key and the authority that both sides trust, all PEM."""

    cert: bytes
    key: bytes
    ca: bytes
    identity: Identity
    not_after_s: float  # Unix time; from then on no peer accepts it

    def __repr__(self) -> str:
        """Show whose it is, never the key."""
        return f"Bundle({self.identity}, until {self.not_after_s:.0f})"


def read_bundle(directory: Path) -> Bundle:
    """Read the three files of a mounted Secret. Raises TlsError if they are of no use, also where they have expired."""
    try:
        return _read(directory)
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"{directory / CERT_FILE} cannot be used: {error.verify_message}") from error
    except (OSError, BadIdentity) as error:  # an ssl.SSLError is an OSError
        raise TlsError(f"{directory} holds no usable {CERT_FILE}, {KEY_FILE} and {CA_FILE}: {error}") from error


def _read(directory: Path) -> Bundle:
    cert, key, ca = (directory / name for name in (CERT_FILE, KEY_FILE, CA_FILE))
    shown = _shown_to_a_peer(cert, key, ca)
    names = [value for _, value in shown["subjectAltName"]]
    not_after_s = float(ssl.cert_time_to_seconds(shown["notAfter"]))
    return Bundle(cert.read_bytes(), key.read_bytes(), ca.read_bytes(), identity_among(names), not_after_s)


def _shown_to_a_peer(cert: Path, key: Path, ca: Path) -> dict[str, Any]:
    """Return what a peer learns of the certificate: by a handshake in memory, which checks all that a peer checks."""
    here, there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    here.load_cert_chain(cert, key)
    there.check_hostname = False  # whose it is, is read afterwards
    there.load_verify_locations(ca)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = here.wrap_bio(up, down, server_side=True), there.wrap_bio(down, up)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    shown: Any = client.getpeercert() or {}
    return {"subjectAltName": (), **shown}


class MutualTls:
    """Owns the certificate in use. Safe from any thread: gRPC asks for it at every handshake, in one of its own."""

    def __init__(self, bundle: Bundle | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Take a certificate, if there is one yet."""
        self._clock = clock
        self._bundle = bundle
        self.version = 0  # grows with every replacement: who keeps something of the certificate compares

    def __repr__(self) -> str:
        """Show whose certificate it is, and until when."""
        return f"MutualTls({self._bundle!r})"

    @property
    def identity(self) -> Identity:
        """Return who this process is. Raises TlsError without a certificate."""
        return self._present().identity

    @property
    def expiry_s(self) -> float:
        """Return for how many seconds the certificate is still accepted: below 0 it is not. NaN without one."""
        return self._bundle.not_after_s - self._clock() if self._bundle else math.nan

    def replace(self, bundle: Bundle) -> None:
        """Use another certificate for connections from now on. Raises TlsError if it is somebody else's."""
        if self._bundle and bundle.identity != self._bundle.identity:
            raise TlsError(f"the new certificate is of {bundle.identity}; this process is {self._bundle.identity}")
        self._bundle = bundle
        self.version += 1

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return what one port listens with: it lets in who has a certificate of the same authority."""
        used = self.version

        def take() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            if used == self.version:
                return None
            used = self.version
            return _configuration(self._present())

        fetch: Any = take  # the stubs know no None, which says that nothing changed
        return grpc.dynamic_ssl_server_credentials(_configuration(self._present()), fetch, True)  # noqa: FBT003

    def channel(self, target: str, role: Role, options: Sequence[tuple[str, Any]]) -> aio.Channel:
        """Return a channel to a server that must be of this role. Raises TlsError without a valid certificate."""
        bundle = self._present()
        if self.expiry_s <= 0:
            raise TlsError(f"the certificate of {bundle.identity} expired {-self.expiry_s:.0f} s ago")
        credentials = grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.cert)
        named = [*options, ("grpc.ssl_target_name_override", server_name(role))]
        return aio.secure_channel(target, credentials, options=named)

    def _present(self) -> Bundle:
        if self._bundle is None:
            raise TlsError("there is no certificate yet")
        return self._bundle


def open_channel(target: str, tls: MutualTls | None, role: Role, options: Sequence[tuple[str, Any]]) -> aio.Channel:
    """Return a channel to a server of this role: plain where there is no TLS. Raises TlsError."""
    return tls.channel(target, role, options) if tls else aio.insecure_channel(target, options=options)


def certificate_complaint(details: str) -> str:
    """Return what is wrong with the server's certificate when gRPC could not connect and says so, "" if it is not that.

    The words are ours: gRPC's own hold addresses and differ from version to version.
    """
    if "certificate has expired" in details:
        return "its certificate has expired"
    if "Hostname Verification" in details:
        return "its certificate is of another role"
    return "its certificate is of another authority" if "certificate" in details.lower() else ""


async def follow_directory(
    tls: MutualTls,
    directory: Path,
    *,
    every_s: float = RELOAD_INTERVAL_S,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    on_change: Callable[[], None] = lambda: None,
) -> None:
    """Use what lies in the directory whenever it changed, for ever. What is of no use is logged once, tried again."""
    used = complained = _fingerprint(directory)
    while True:
        await sleep(every_s)
        seen = _fingerprint(directory)
        if seen == used:
            continue
        try:
            tls.replace(read_bundle(directory))
        except TlsError as error:
            if seen != complained:
                _LOG.error("the certificate stays as it was: %s", error)
            complained = seen
            continue
        used = seen
        _LOG.info("new connections get the renewed certificate, valid for %.0f s", tls.expiry_s)
        on_change()


def _fingerprint(directory: Path) -> tuple[tuple[int, int], ...]:
    """Return what tells two contents apart; what is missing counts as a content."""
    found = []
    for name in (CERT_FILE, KEY_FILE, CA_FILE):
        try:
            stat = (directory / name).stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((stat.st_mtime_ns, stat.st_ino))
    return tuple(found)


def _configuration(bundle: Bundle) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(bundle.key, bundle.cert)], root_certificates=bundle.ca)
