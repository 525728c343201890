"""What the doors prove their name with: a certificate and its key, from two files. Owns what is in use.

New connections get the new certificate after a reload; open ones go on with theirs. Who looks at no name is shown one
of the process's own.
"""

from __future__ import annotations

import datetime as dt
import logging
import ssl
from pathlib import Path
from typing import Any

import grpc

_LOG = logging.getLogger(__name__)


class SelfSigned:
    """A certificate and its key of the process's own, for who wants TLS and checks nothing; gone when it ends."""

    def __init__(self, now: dt.datetime) -> None:
        """Make both, valid from a day before to ten years after."""
        from cryptography import x509  # slow to import
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dormouse-gateway")])
        cert = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=3653))
            .sign(key, hashes.SHA256())
        )
        pem, secret = serialization.Encoding.PEM, serialization.NoEncryption()
        self._pair = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, secret), cert.public_bytes(pem)

    def __repr__(self) -> str:
        """Show nothing of the key."""
        return "SelfSigned()"

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a gRPC server listens with."""
        return grpc.ssl_server_credentials([self._pair])


class Identity:
    """One certificate chain with its key, both PEM, for gRPC and for HTTP."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Read both. Raises OSError (an ssl.SSLError is one) if they do not belong together."""
        self.files = (cert_file, key_file)
        self._context = self._loaded()
        self._initial = self._configuration()
        self._changed: grpc.ServerCertificateConfiguration | None = None  # until gRPC took it

    def __repr__(self) -> str:
        """Name the files."""
        return f"Identity({self.files[0]})"

    @property
    def context(self) -> ssl.SSLContext:
        """Return what HTTP listens with; it stays the same object."""
        return self._context

    def credentials(self) -> grpc.ServerCredentials:
        """Return what the one gRPC server listens with; it asks at every handshake, in a thread of its own."""
        take: Any = self._take  # the stubs know no None, which says that nothing changed
        return grpc.dynamic_ssl_server_credentials(self._initial, take, require_client_authentication=False)

    def reload(self) -> None:
        """Read both files again. Raises OSError for what cannot be used: then all stays as it was."""
        self._loaded()  # of a half-written pair nothing must reach the context in use
        self._context.load_cert_chain(*self.files)
        self._changed = self._configuration()
        _LOG.info("new connections get the changed TLS certificate")

    def _take(self) -> grpc.ServerCertificateConfiguration | None:
        changed, self._changed = self._changed, None
        return changed

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self.files)
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        cert, key = (file.read_bytes() for file in self.files)
        return grpc.ssl_server_certificate_configuration([(key, cert)])
