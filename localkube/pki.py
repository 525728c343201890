"""Keys and certificates: one CA, and a client or serving certificate per component. The only user of `cryptography`."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localkube import manifests, spec
from localkube.config import Credentials, kubeconfig
from localkube.errors import HostError
from localkube.spec import Paths

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LIFETIME = dt.timedelta(days=365)
COMPLETE = ".complete"


@dataclass(frozen=True, slots=True)
class Subject:
    """What one certificate says."""

    file: str  # without suffix
    user: str  # common name: the user for the API server
    group: str | None = None  # organization: the user's group
    hosts: tuple[str, ...] = ()  # names and addresses of a server; empty: a client only


API_HOSTS = (
    "127.0.0.1",
    "localhost",
    spec.NODE_IP,
    spec.API_SERVICE_IP,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{spec.DNS_DOMAIN}",
)
SERVERS = (
    Subject("etcd", "etcd", hosts=("127.0.0.1", "localhost")),
    Subject("apiserver", "kube-apiserver", hosts=API_HOSTS),
    Subject("kubelet-serving", f"system:node:{spec.NODE_NAME}", "system:nodes", (spec.NODE_IP, spec.NODE_NAME)),
    Subject("kubelet-2-serving", f"system:node:{spec.SECOND_NAME}", "system:nodes", (spec.SECOND_IP, spec.SECOND_NAME)),
)
API_SERVER_CLIENTS = (
    Subject("apiserver-etcd", "kube-apiserver"),
    Subject("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters"),
    Subject("front-proxy", "front-proxy"),
)
USERS = (
    Subject("admin", "localkube:admin", "system:masters"),
    Subject("kubelet", f"system:node:{spec.NODE_NAME}", "system:nodes"),
    Subject("kubelet-2", f"system:node:{spec.SECOND_NAME}", "system:nodes"),
    Subject("controller-manager", "system:kube-controller-manager"),
    Subject("scheduler", "system:kube-scheduler"),
    Subject("proxy", "system:kube-proxy"),
    Subject("coredns", manifests.COREDNS_USER),
    Subject("provisioner", manifests.PROVISIONER_USER),
    Subject("policies", manifests.POLICIES_USER),
)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, as a whole."""
    building = path.with_name(path.name + ".partial")
    building.touch(mode=0o600)
    building.chmod(0o600)
    building.write_bytes(content)
    building.rename(path)


def ensure(paths: Paths) -> None:
    """Make every key, certificate and kubeconfig under `paths.pki`, unless a finished set is there.

    Raises:
        HostError: the Python package `cryptography` is missing.
    """
    if not (paths.pki / COMPLETE).exists():
        _make_all(paths.pki)
    write_private(paths.kubeconfig, (paths.pki / "admin.conf").read_bytes())


def _make_all(pki: Path) -> None:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: F401  # only to see that it is there
    except ImportError as error:
        raise HostError("certificates: the Python package `cryptography` is missing; run `make install`") from error
    pki.mkdir(parents=True, exist_ok=True)
    pki.chmod(0o700)
    authority = _Authority.create()
    write_private(pki / "ca.crt", authority.pem)
    for subject in (*SERVERS, *API_SERVER_CLIENTS, *USERS):
        credentials = authority.issue(subject)
        write_private(pki / f"{subject.file}.crt", credentials.certificate)
        write_private(pki / f"{subject.file}.key", credentials.key)
        if subject in USERS:
            write_private(pki / f"{subject.file}.conf", kubeconfig(subject.user, credentials).encode())
    private, public = _service_account_keys()
    write_private(pki / "service-accounts.key", private)
    write_private(pki / "service-accounts.pub", public)
    (pki / COMPLETE).touch()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _service_account_keys() -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _key_pem(key), public


@dataclass(frozen=True, slots=True)
class _Authority:
    """The cluster's own CA; its key is never written, so nobody can issue another certificate later."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls) -> _Authority:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("localkube", None)
        builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @property
    def pem(self) -> bytes:
        from cryptography.hazmat.primitives import serialization

        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, subject: Subject) -> Credentials:
        """Return a fresh key and a certificate for it."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(subject.user, subject.group), self.certificate.subject, key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if subject.hosts:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(_hosts(subject.hosts)), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        signed = builder.sign(self.key, hashes.SHA256())
        return Credentials(self.pem, signed.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def _name(user: str, group: str | None) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _hosts(hosts: tuple[str, ...]) -> list[x509.GeneralName]:
    from cryptography import x509

    def general_name(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    return [general_name(host) for host in hosts]


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    from cryptography import x509

    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
