"""Certificates on both sides: who gets in, what is refused and how it is said, and a change while calls run."""

import asyncio
import math
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest
from grpc import aio

from dormouse_api.auth import RequireRole
from dormouse_api.mutual_tls import MutualTls, TlsError, follow_directory, open_channel, read_bundle
from dormouse_api.names import CONTROL_SERVICE, INFERENCE_SERVICE, Role
from dormouse_api.peers import RequirePeer, peer_identity
from dormouse_api.testing_tickets import knows, proof
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority, tls_of, write_bundle

PROOFS = knows(Role.OPERATOR, Role.GATEWAY)
AUTHORITY = an_authority()


def service_of(name, go_on):
    """Return a service with a call of each shape that ours have."""

    async def once(request, _):
        return request

    async def stream(request, _):
        yield b"first"
        await go_on.wait()
        yield request

    async def written(request, context):
        await context.write(request)

    methods = {
        "Once": grpc.unary_unary_rpc_method_handler(once),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
        "Written": grpc.unary_stream_rpc_method_handler(written),
    }
    return grpc.method_handlers_generic_handler(name, methods)


class House:
    """A server that proves to be a worker, and ways to call it."""

    def __init__(self, tls):
        self.tls = tls
        self.go_on = asyncio.Event()
        guards = [RequireRole(PROOFS, {CONTROL_SERVICE: Role.OPERATOR}), RequirePeer(tls.identity, PROOFS)]
        self.server = aio.server(interceptors=guards)
        services = (service_of(name, self.go_on) for name in (CONTROL_SERVICE, INFERENCE_SERVICE))
        self.server.add_generic_rpc_handlers(tuple(services))
        self.port = self.server.add_secure_port("127.0.0.1:0", tls.server_credentials())

    def channel(self, tls, role=Role.WORKER):
        return open_channel(f"127.0.0.1:{self.port}", tls, role, ())

    async def call(self, tls, service, metadata=(), role=Role.WORKER):
        async with self.channel(tls, role) as channel:
            return await channel.unary_unary(f"/{service}/Once")(b"x", timeout=90, metadata=metadata)

    async def refusal(self, tls, service, metadata=(), role=Role.WORKER):
        with pytest.raises(aio.AioRpcError) as caught:
            await self.call(tls, service, metadata, role)
        return caught.value


@asynccontextmanager
async def serving(tls):
    house = House(tls)
    await house.server.start()
    try:
        yield house
    finally:
        house.go_on.set()
        await house.server.stop(None)


@pytest.fixture
async def house():
    async with serving(tls_of(AUTHORITY, Role.WORKER)) as house:
        yield house


async def test_operator_gateway_and_client_reach_what_is_theirs(house):
    assert await house.call(tls_of(AUTHORITY, Role.OPERATOR), CONTROL_SERVICE, proof(Role.OPERATOR)) == b"x"
    assert await house.call(tls_of(AUTHORITY, Role.GATEWAY), INFERENCE_SERVICE, proof(Role.GATEWAY)) == b"x"
    assert await house.call(tls_of(AUTHORITY, Role.CLIENT), INFERENCE_SERVICE) == b"x"


@pytest.mark.parametrize(
    ("role", "shown", "service", "words"),
    [
        (
            Role.CLIENT,
            Role.OPERATOR,
            CONTROL_SERVICE,
            "a ticket of the role operator was shown by dormouse://client/team/tiny",
        ),
        (
            Role.GATEWAY,
            Role.OPERATOR,
            CONTROL_SERVICE,
            "a ticket of the role operator was shown by dormouse://gateway/",
        ),
        (Role.WORKER, Role.OPERATOR, CONTROL_SERVICE, "a ticket of the role operator was shown by dormouse://worker/"),
        (Role.OPERATOR, "", CONTROL_SERVICE, "needs the role operator; this caller has the role client"),
        (Role.OPERATOR, "", INFERENCE_SERVICE, "needs a certificate of the role client or gateway"),
        (
            Role.OPERATOR,
            Role.GATEWAY,
            INFERENCE_SERVICE,
            "a ticket of the role gateway was shown by dormouse://operator/",
        ),
        (Role.CLIENT, Role.GATEWAY, INFERENCE_SERVICE, "a ticket of the role gateway was shown by dormouse://client/"),
        (Role.WORKER, "", INFERENCE_SERVICE, "this caller is dormouse://worker/team/tiny"),
    ],
)
async def test_every_forbidden_arrow_is_refused_whatever_ticket_was_stolen(house, role, shown, service, words):
    error = await house.refusal(tls_of(AUTHORITY, role), service, proof(shown) if shown else ())
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert words in error.details()


async def test_a_client_of_another_namespace_is_refused(house):
    error = await house.refusal(tls_of(AUTHORITY, Role.CLIENT, "other"), INFERENCE_SERVICE)
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "open to clients of the namespace team" in error.details()


async def test_streams_are_refused_and_served_alike(house):
    async with house.channel(tls_of(AUTHORITY, Role.OPERATOR)) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_stream(f"/{INFERENCE_SERVICE}/Stream")(b"x", timeout=90).read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    house.go_on.set()
    async with house.channel(tls_of(AUTHORITY, Role.CLIENT)) as channel:
        stream = channel.unary_stream(f"/{INFERENCE_SERVICE}/Stream")(b"x", timeout=90)
        assert [each async for each in stream] == [b"first", b"x"]
        written = channel.unary_stream(f"/{INFERENCE_SERVICE}/Written")(b"y", timeout=90)
        assert [each async for each in written] == [b"y"]
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{INFERENCE_SERVICE}/Nothing")(b"x", timeout=90)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_caller_without_tls_gets_nothing(house):
    error = await house.refusal(None, INFERENCE_SERVICE)
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_caller_of_another_authority_gets_nothing(house):
    stranger = a_bundle(an_authority(), Role.OPERATOR)
    ours = a_bundle(AUTHORITY, Role.OPERATOR)
    mixed = type(ours)(stranger.cert, stranger.key, ours.ca, ours.identity, ours.not_after_s)  # trusts us, at least
    error = await house.refusal(MutualTls(mixed), CONTROL_SERVICE, proof(Role.OPERATOR))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_of_another_authority_gets_no_call(house):
    error = await house.refusal(tls_of(an_authority(), Role.OPERATOR), CONTROL_SERVICE, proof(Role.OPERATOR))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "certificate" in error.details()


async def test_a_server_of_another_role_gets_no_call(house):
    error = await house.refusal(tls_of(AUTHORITY, Role.OPERATOR), CONTROL_SERVICE, role=Role.GATEWAY)
    assert "Hostname Verification Check failed" in error.details()


async def test_a_callers_own_expired_certificate_is_named_before_anything_is_sent(house):
    expired = MutualTls(a_bundle(AUTHORITY, Role.OPERATOR, lifetime=-DAY))
    with pytest.raises(TlsError, match=r"the certificate of dormouse://operator/team/tiny expired 8640[0-9] s ago"):
        await house.call(expired, CONTROL_SERVICE)
    assert -86410 < expired.expiry_s < -86390


async def test_a_server_refuses_an_expired_certificate_also_from_a_caller_whose_clock_is_wrong(house):
    slow = MutualTls(a_bundle(AUTHORITY, Role.OPERATOR, lifetime=-DAY), clock=lambda: 0.0)
    error = await house.refusal(slow, CONTROL_SERVICE, proof(Role.OPERATOR))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_servers_expired_certificate_is_named():
    async with serving(MutualTls(a_bundle(AUTHORITY, Role.WORKER, lifetime=-DAY))) as house:
        error = await house.refusal(tls_of(AUTHORITY, Role.OPERATOR), CONTROL_SERVICE, proof(Role.OPERATOR))
        assert "certificate has expired" in error.details()


async def test_a_stream_goes_on_while_the_certificate_changes_and_new_connections_get_the_new_one(house):
    other = an_authority()
    async with house.channel(tls_of(AUTHORITY, Role.CLIENT)) as channel:
        stream = channel.unary_stream(f"/{INFERENCE_SERVICE}/Stream")(b"x", timeout=90)
        assert await stream.read() == b"first"
        house.tls.replace(a_bundle(other, Role.WORKER))
        assert await house.call(tls_of(other, Role.CLIENT), INFERENCE_SERVICE) == b"x"
        house.go_on.set()
        assert await stream.read() == b"x"


def test_a_certificate_of_somebody_else_is_no_replacement():
    tls = tls_of(AUTHORITY, Role.WORKER)
    with pytest.raises(TlsError, match="is of dormouse://gateway/team/tiny; this process is dormouse://worker"):
        tls.replace(a_bundle(AUTHORITY, Role.GATEWAY))
    assert tls.version == 0


async def test_without_a_certificate_nothing_is_opened():
    tls = MutualTls()
    assert math.isnan(tls.expiry_s)
    with pytest.raises(TlsError, match="there is no certificate yet"):
        tls.channel("127.0.0.1:1", Role.WORKER, ())


def test_a_peer_without_a_certificate_has_no_identity():
    with pytest.raises(ValueError, match="names 0 identities"):
        peer_identity({})


def test_a_mounted_secret_is_read_with_whose_it_is_and_until_when(tmp_path):
    bundle = a_bundle(AUTHORITY, Role.WORKER)
    read = read_bundle(write_bundle(tmp_path, bundle))
    assert (read.identity, read.cert, read.key, read.ca) == (bundle.identity, bundle.cert, bundle.key, bundle.ca)
    assert read.not_after_s == pytest.approx(bundle.not_after_s, abs=1)
    assert "PRIVATE" not in f"{read!r}{MutualTls(read)!r}"


def test_files_of_no_use_are_refused_with_the_reason(tmp_path):
    with pytest.raises(TlsError, match=f"{tmp_path} holds no usable tls.crt, tls.key and ca.crt"):
        read_bundle(tmp_path)
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER, lifetime=-timedelta(minutes=1)))
    with pytest.raises(TlsError, match="cannot be used: certificate has expired"):
        read_bundle(tmp_path)
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER))
    (tmp_path / "tls.key").write_bytes(a_bundle(AUTHORITY, Role.WORKER).key)
    with pytest.raises(TlsError, match="holds no usable"):
        read_bundle(tmp_path)
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER))
    (tmp_path / "ca.crt").write_bytes(an_authority().cert_pem)
    with pytest.raises(TlsError, match="cannot be used"):
        read_bundle(tmp_path)


async def test_changed_files_are_taken_and_bad_ones_are_said_once_and_tried_again(tmp_path, caplog):
    first, second = (a_bundle(AUTHORITY, Role.WORKER) for _ in range(2))
    tls = MutualTls(read_bundle(write_bundle(tmp_path, first)))
    steps = iter(
        [
            lambda: None,
            lambda: (tmp_path / "tls.crt").write_bytes(second.cert),  # half of a change
            lambda: None,
            lambda: write_bundle(tmp_path, second),
        ]
    )
    versions = []

    async def sleep(_):
        versions.append(tls.version)
        try:
            next(steps)()
        except StopIteration:
            raise asyncio.CancelledError from None

    changes = []
    with pytest.raises(asyncio.CancelledError):
        await follow_directory(tls, tmp_path, sleep=sleep, on_change=lambda: changes.append(tls.version))
    assert versions == [0, 0, 0, 0, 1]
    assert changes == [1]
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
