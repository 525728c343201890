"""Certificates for tests: real ones, made as the operator makes them, and written as the kubelet mounts them."""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dormouse_api.identity import CA_FILE, CERT_FILE, KEY_FILE, Identity, server_name
from dormouse_api.mutual_tls import Bundle, MutualTls
from dormouse_api.names import Role
from dormouse_operator.certificates.authority import CertificateAuthority

DAY = timedelta(days=1)


def an_authority() -> CertificateAuthority:
    """Return a new authority, valid now."""
    return CertificateAuthority.create("tests", now=datetime.now(UTC), lifetime=10 * DAY)


def a_bundle(
    authority: CertificateAuthority,
    role: Role,
    *,
    namespace: str = "team",
    name: str = "tiny",
    lifetime: timedelta = DAY,
) -> Bundle:
    """Return a certificate of this role; with a lifetime below 0 it has expired already."""
    now = datetime.now(UTC)
    begin = min(now, now + lifetime - DAY)
    return authority.issue(Identity(role, namespace, name), now=begin, lifetime=now + lifetime - begin)


def tls_of(authority: CertificateAuthority, role: Role, namespace: str = "team") -> MutualTls:
    """Return what a process of this role proves itself with."""
    return MutualTls(a_bundle(authority, role, namespace=namespace))


def write_bundle(directory: Path, bundle: Bundle) -> Path:
    """Put a certificate in place of another one, each file at once; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in ((CERT_FILE, bundle.cert), (KEY_FILE, bundle.key), (CA_FILE, bundle.ca)):
        new = directory / f".{name}.new"
        new.write_bytes(content)
        os.replace(new, directory / name)  # noqa: PTH105  as atomic as the kubelet's links
    return directory


def serial_shown(address: tuple[str, int], role: Role, directory: Path) -> int:
    """Return the serial number of the certificate that a server shows; the caller's own is in the directory."""
    context = ssl.create_default_context(cafile=directory / CA_FILE)
    context.load_cert_chain(directory / CERT_FILE, directory / KEY_FILE)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(address, timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=server_name(role)) as wrapped,
    ):
        shown = wrapped.getpeercert() or {}
        return int(str(shown["serialNumber"]), 16)
