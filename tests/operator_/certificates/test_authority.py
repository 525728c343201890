"""The operator's own authority: what it issues, until when, and what it does not take for its own."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from dormouse_api.identity import Identity
from dormouse_api.mutual_tls import read_bundle
from dormouse_api.names import Role
from dormouse_operator.certificates.authority import BadCertificate, CertificateAuthority, validity_under
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority, write_bundle

NOW = datetime.now(UTC).replace(microsecond=0)
WORKER = Identity(Role.WORKER, "team", "tiny")


def pem_of(key):
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(serialization.Encoding.PEM, *plain)


def signed(key, issuer_key, issuer="another"):
    """Return a certificate as somebody else makes authorities."""
    subject, signer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("theirs", issuer))
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 9 * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def test_a_certificate_names_its_holder_and_serves_both_directions_of_tls():
    cert = x509.load_pem_x509_certificate(an_authority().issue(WORKER, now=NOW, lifetime=DAY).cert)
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["dormouse://worker/team/tiny"]
    assert names.get_values_for_type(x509.DNSName) == ["worker.dormouse.internal"]
    usages = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert len(usages) == 2
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_it_is_valid_from_a_little_before_now_and_no_longer_than_its_authority():
    authority = CertificateAuthority.create("r", now=NOW, lifetime=2 * DAY)
    short, long = (authority.issue(WORKER, now=NOW, lifetime=days * DAY) for days in (1, 9))
    assert validity_under(short.cert, authority.root_pem).begin == NOW - timedelta(minutes=5)
    assert validity_under(short.cert, authority.root_pem).end == NOW + DAY
    assert validity_under(long.cert, authority.root_pem).end == authority.validity.end
    assert long.not_after_s == authority.validity.end.timestamp()


def test_an_authority_is_the_same_after_it_was_stored():
    authority = an_authority()
    stored = CertificateAuthority(authority.cert_pem, authority.key_pem)
    assert validity_under(a_bundle(authority, Role.WORKER).cert, stored.root_pem)
    assert "PRIVATE" not in repr(stored)


@pytest.mark.parametrize("cert", [b"", b"no certificate", a_bundle(an_authority(), Role.WORKER).cert])
def test_what_another_authority_issued_is_not_its_own(cert):
    with pytest.raises(BadCertificate, match="not issued by this authority"):
        validity_under(cert, an_authority().root_pem)


def test_an_authority_that_somebody_else_made_with_rsa_will_do(tmp_path):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    authority = CertificateAuthority(signed(key, key, "theirs"), pem_of(key))
    assert read_bundle(write_bundle(tmp_path, a_bundle(authority, Role.WORKER))).identity == WORKER


def test_an_authority_of_no_use_is_refused_with_the_reason():
    ours, other = an_authority(), ec.generate_private_key(ec.SECP256R1())
    odd = ed25519.Ed25519PrivateKey.generate()
    for cert, key, words in (
        (b"", ours.key_pem, "cannot be read"),
        (ours.cert_pem, b"", "cannot be read"),
        (ours.cert_pem, an_authority().key_pem, "do not belong together"),
        (ours.cert_pem, pem_of(odd), "allowed are elliptic curves and RSA"),
        (signed(other, ec.generate_private_key(ec.SECP256R1())), pem_of(other), "signed by another one"),
    ):
        with pytest.raises(BadCertificate, match=words):
            CertificateAuthority(cert, key)


def test_openssl_accepts_what_it_issued_under_its_strictest_rules(tmp_path):
    bundle = an_authority().issue(WORKER, now=NOW, lifetime=DAY)
    write_bundle(tmp_path, bundle)
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(up, down, server_side=True)
    here = context.wrap_bio(down, up, server_hostname="worker.dormouse.internal")
    for side in (here, there, here):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert here.getpeercert()["notAfter"]
