"""Makes certificates: an authority, and short-lived ones by it. The only module that knows `cryptography`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dormouse_api.identity import Identity, server_name
from dormouse_api.mutual_tls import Bundle
from dormouse_operator.decide.rotation import Held

_SKEW = timedelta(minutes=5)  # clocks of nodes differ: a certificate is valid since then
_PEM = serialization.Encoding.PEM


class BadCertificate(ValueError):
    """A certificate or key cannot be read, or they do not belong together; the message says which."""


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is accepted."""

    begin: datetime
    end: datetime


class CertificateAuthority:
    """A certificate that signs others, with its key."""

    def __init__(self, cert_pem: bytes, key_pem: bytes) -> None:
        """Take both as PEM. Raises BadCertificate."""
        self.cert_pem, self.key_pem = cert_pem, key_pem
        try:
            self._certs = x509.load_pem_x509_certificates(cert_pem)
            key = serialization.load_pem_private_key(key_pem, password=None)
        except (ValueError, TypeError) as error:
            raise BadCertificate(f"the authority cannot be read: {error}") from error
        if not isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
            raise BadCertificate(f"the authority's key is {type(key).__name__}; allowed are elliptic curves and RSA")
        if self._certs[0].issuer != self._certs[0].subject:
            raise BadCertificate("the authority was signed by another one; allowed is one that signed itself")
        if self._certs[0].public_key() != key.public_key():
            raise BadCertificate("the authority's certificate and key do not belong together")
        self._key = key

    def __repr__(self) -> str:
        """Show its name and end, never the key."""
        return f"CertificateAuthority({self._certs[0].subject.rfc4514_string()}, until {self.validity.end})"

    @property
    def root_pem(self) -> bytes:
        """Return the certificate that signs, alone."""
        return self._certs[0].public_bytes(_PEM)

    @property
    def validity(self) -> Validity:
        """Return from when to when it can vouch."""
        return Validity(self._certs[0].not_valid_before_utc, self._certs[0].not_valid_after_utc)

    @classmethod
    def create(cls, name: str, *, now: datetime, lifetime: timedelta) -> CertificateAuthority:
        """Make a new one of this name."""
        key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
        builder = _builder(subject, subject, key.public_key(), Validity(now - _SKEW, now + lifetime))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        cert = builder.sign(key, hashes.SHA256())
        return cls(cert.public_bytes(_PEM), _private_pem(key))

    def issue(self, identity: Identity, *, now: datetime, lifetime: timedelta) -> Bundle:
        """Make a certificate for both directions of TLS, that ends no later than the authority's own."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = min(now + lifetime, self.validity.end)
        issuer = self._certs[0]
        names = [x509.UniformResourceIdentifier(str(identity)), x509.DNSName(server_name(identity.role))]
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        cert = (
            _builder(_name(str(identity.role)), issuer.subject, key.public_key(), Validity(now - _SKEW, end))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(usages, critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Bundle(cert.public_bytes(_PEM), _private_pem(key), self.cert_pem, identity, end.timestamp())


def certificates_in(pem: bytes) -> tuple[bytes, ...]:
    """Return each certificate of a PEM file, always written alike; () for what is none."""
    try:
        return tuple(cert.public_bytes(_PEM) for cert in x509.load_pem_x509_certificates(pem))
    except ValueError:
        return ()


def validity_under(cert_pem: bytes, authority_pem: bytes) -> Validity:
    """Return from when to when a certificate is accepted. Raises BadCertificate if this authority did not issue it."""
    try:
        cert = x509.load_pem_x509_certificate(cert_pem)
        cert.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise BadCertificate(f"it was not issued by this authority: {error}") from error
    return Validity(cert.not_valid_before_utc, cert.not_valid_after_utc)


def held_of(cert_pem: bytes, ca_pem: bytes, authorities: tuple[bytes, ...]) -> Held | None:
    """Return what these files of a holder say of these authorities, and of no other; None if none of them issued it."""
    trusts = frozenset(authorities).intersection(certificates_in(ca_pem))
    for issuer in authorities:
        with suppress(BadCertificate):
            validity = validity_under(cert_pem, issuer)
            return Held(issuer, validity.begin, validity.end, ca_pem, trusts)
    return None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.begin)
        .not_valid_after(validity.end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
