"""The Python clients and a server that speaks TLS: whom they trust, by which name, and what they show of a key."""

from __future__ import annotations

import datetime as dt
import ipaddress
from concurrent import futures

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dormouse_api import client as api
from dormouse_api.v1 import inference_pb2_grpc as rpc
from tests.api.conftest import Server


@pytest.fixture(scope="module")
def certificate():
    """A certificate for gateway.test that is its own CA: certificate and key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway.test")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("gateway.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, cipher = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return made.public_bytes(pem), key.private_bytes(pem, form, cipher)


@pytest.fixture
def tls_address(certificate):
    """A server that speaks TLS only."""
    grpc_server = grpc.server(futures.ThreadPoolExecutor(2))
    rpc.add_InferenceServicer_to_server(Server(), grpc_server)
    credentials = grpc.ssl_server_credentials([(certificate[1], certificate[0])])
    address = f"127.0.0.1:{grpc_server.add_secure_port('127.0.0.1:0', credentials)}"
    grpc_server.start()
    yield address
    grpc_server.stop(None).wait()


def test_tls_trusts_the_given_ca(connect, certificate, tls_address):
    assert connect(tls_address, tls=api.Tls(roots=certificate[0])).one("get_model", "tiny").name == "tiny"


def test_tls_checks_the_name_that_is_expected(connect, certificate, tls_address):
    right = api.Tls(roots=certificate[0], server_name="gateway.test")
    assert connect(tls_address, tls=right).one("get_model", "tiny").name == "tiny"
    wrong = api.Tls(roots=certificate[0], server_name="other.test")
    with pytest.raises(api.Unreachable):
        connect(tls_address, tls=wrong).one("get_model", "tiny")


def test_without_tls_a_server_that_speaks_it_is_unreachable(connect, tls_address):
    with pytest.raises(api.Unreachable):
        connect(tls_address).one("get_model", "tiny")


def test_tls_shows_no_key():
    shown = repr(api.Tls(roots=b"roots", certificate=b"c", key=b"very private"))
    assert "private" not in shown
