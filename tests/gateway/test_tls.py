"""TLS at both doors of the clients, and certificates that are renewed while the gateway runs."""

import asyncio
import datetime as dt
import socket
import ssl
from pathlib import Path

import aiohttp
import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_gateway.files import fingerprint, watch_files
from dormouse_gateway.variables import BadSetting

NOW = dt.datetime.now(dt.UTC)


def write_pair(directory, serial, *, key_of_another=False):
    """Write a self-signed certificate for localhost with this serial number, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    written = ec.generate_private_key(ec.SECP256R1()) if key_of_another else key
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "tls.crt").write_bytes(made.public_bytes(pem))
    (directory / "tls.key").write_bytes(written.private_bytes(pem, *plain))


@pytest.fixture
def pair(tmp_path):
    write_pair(tmp_path, 1)
    return {"tls_cert_file": tmp_path / "tls.crt", "tls_key_file": tmp_path / "tls.key"}


def serial_at(port, alpn):
    """Return the serial number of the certificate that is shown at a port."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as wrapped:
        return x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True)).serial_number


async def serials(house):
    ports = house.ports
    return await asyncio.to_thread(lambda: (serial_at(ports.inference, "h2"), serial_at(ports.openai, "http/1.1")))


async def test_both_doors_speak_tls(make_house, workers, pair):
    async with make_house(**pair) as house:
        await house.add("tiny", workers[:1])
        trusted = pair["tls_cert_file"].read_bytes()
        target = f"localhost:{house.ports.inference}"
        async with aio.secure_channel(target, grpc.ssl_channel_credentials(trusted)) as channel:
            request = pb.GenerateRequest(model="tiny", text="a")
            assert [each async for each in rpc.InferenceStub(channel).Generate(request, timeout=90)]
        context = ssl.create_default_context(cadata=trusted.decode())
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://localhost:{house.ports.openai}/v1/models", ssl=context) as response,
        ):
            assert (await response.json())["data"][0]["id"] == "tiny"


async def test_a_renewed_certificate_is_shown_to_new_connections(make_house, pair, tmp_path):
    async with make_house(**pair, reload_interval_s=0.01) as house:
        assert await serials(house) == (1, 1)
        write_pair(tmp_path, 2)
        while await serials(house) != (2, 2):
            pass


async def test_a_pair_that_does_not_fit_together_changes_nothing(make_house, pair, tmp_path):
    async with make_house(**pair) as house:
        write_pair(tmp_path, 2, key_of_another=True)
        with pytest.raises(OSError, match="KEY_VALUES_MISMATCH"):
            house.gateway._identity.reload()
        assert await serials(house) == (1, 1)


async def test_at_the_start_such_a_pair_stops_the_program(make_house, pair, tmp_path):
    write_pair(tmp_path, 2, key_of_another=True)
    with pytest.raises(BadSetting, match=r"DORMOUSE_TLS_CERT_FILE.*tls\.crt"):
        async with make_house(**pair):
            pass


async def test_every_change_of_a_directory_or_a_file_is_noticed_once(tmp_path):
    directory, single = tmp_path / "keys", tmp_path / "single"
    directory.mkdir()
    changes = asyncio.Queue()
    watching = asyncio.create_task(
        watch_files((directory, single), lambda: changes.put_nowait(fingerprint((directory, single))), every_s=0.001)
    )
    await asyncio.sleep(0)  # it has looked once
    for act, path in ((Path.touch, directory / "a"), (Path.touch, single), (Path.unlink, directory / "a")):
        act(path)
        seen = await changes.get()
        while seen != fingerprint((directory, single)):  # it may look between the steps of one change
            seen = await changes.get()
    watching.cancel()
    assert changes.empty()


async def test_a_change_that_cannot_be_used_yet_is_tried_again_without_another_one_and_logged_once(tmp_path, caplog):
    """What keeps a file from being read may pass: a revoked key must not stay until the next change."""
    used, troubles = asyncio.Event(), 3 * ["too many open files"]

    def reload():
        if troubles:
            raise OSError(troubles.pop())
        used.set()

    watching = asyncio.create_task(watch_files((tmp_path,), reload, every_s=0.001))
    await asyncio.sleep(0)
    (tmp_path / "a").mkdir()
    await used.wait()
    watching.cancel()
    assert not troubles
    assert caplog.text.count("tried again every 0.001 s") == 1
