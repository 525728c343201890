"""The Python clients against a real gRPC server, the same cases for both: errors, retries, streams, limits, TLS."""

# ruff: noqa: N802  the methods are those of the .proto file
from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import random
import threading
from concurrent import futures

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dormouse_api import client as api
from dormouse_api.client.errors import ClientError, NotAvailable, Overloaded
from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc


class Server(rpc.InferenceServicer):
    """Ends calls with the errors it is told, one after the other; then answers."""

    def __init__(self):
        self.errors: list[CallError] = []
        self.break_after_first: CallError | None = None
        self.metadata: list[dict[str, str]] = []
        self.calls = 0
        self.ended = threading.Event()
        self.stalls = False

    def note(self, context):
        self.calls += 1
        self.metadata.append(dict(context.invocation_metadata()))
        if self.errors:
            context.abort_with_status(to_grpc_status(self.errors.pop(0)))

    def Generate(self, request, context):
        self.note(context)
        context.add_callback(self.ended.set)
        yield pb.GenerateResponse(text=request.text or request.chat.messages[-1].content)
        if self.break_after_first:
            context.abort_with_status(to_grpc_status(self.break_after_first))
        if self.stalls:
            self.ended.wait(30)
        yield pb.GenerateResponse(text="!", finish_reason=pb.FINISH_REASON_STOP)

    def Tokenize(self, request, context):
        self.note(context)
        return pb.TokenizeResponse(token_ids=[len(request.text)])

    def Detokenize(self, request, context):
        self.note(context)
        return pb.DetokenizeResponse(text=str(list(request.token_ids)))

    def GetModel(self, request, context):
        self.note(context)
        return pb.GetModelResponse(name=request.model)


@pytest.fixture
def server():
    servicer = Server()
    grpc_server = grpc.server(futures.ThreadPoolExecutor(4))
    rpc.add_InferenceServicer_to_server(servicer, grpc_server)
    servicer.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    grpc_server.start()
    yield servicer
    servicer.ended.set()
    grpc_server.stop(None).wait()


class Sync:
    """The client for threads, as the cases use it."""

    def __init__(self, address, **settings):
        self.slept = []
        self.client = api.Client(address, sleep=self.slept.append, rng=random.Random(0), **settings)

    def texts(self, *args, **more):
        return list(self.client.generate_text("tiny", *args, **more))

    def chat(self, messages):
        return list(self.client.chat("tiny", messages))

    def one(self, method, *args, **more):
        return getattr(self.client, method)(*args, **more)

    def close(self):
        self.client.close()


class Async:
    """The client for asyncio behind the same methods."""

    def __init__(self, address, **settings):
        self.slept = []
        self.loop = asyncio.new_event_loop()
        self.client = self.loop.run_until_complete(self.make(address, settings))

    async def make(self, address, settings):
        return api.AsyncClient(address, sleep=self.sleep, rng=random.Random(0), **settings)

    async def sleep(self, seconds):
        self.slept.append(seconds)

    async def gather(self, stream):
        return [piece async for piece in stream]

    def texts(self, *args, **more):
        return self.loop.run_until_complete(self.gather(self.client.generate_text("tiny", *args, **more)))

    def chat(self, messages):
        return self.loop.run_until_complete(self.gather(self.client.chat("tiny", messages)))

    def one(self, method, *args, **more):
        return self.loop.run_until_complete(getattr(self.client, method)(*args, **more))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def connect(kind, server):
    """Make clients that are closed at the end."""
    made = []

    def make(address=None, **settings):
        made.append(kind(address or server.address, **settings))
        return made[-1]

    yield make
    for client in made:
        client.close()


def asleep(seconds):
    return CallError(grpc.StatusCode.UNAVAILABLE, "tiny is asleep", seconds)


def test_text_and_chat_come_in_pieces(connect):
    client = connect()
    assert client.texts("Hi", max_tokens=2) == ["Hi", "!"]
    assert client.chat([{"role": "user", "content": "Hello"}]) == ["Hello", "!"]


def test_unary_calls_answer(connect):
    client = connect()
    assert list(client.one("tokenize", "abc", model="tiny")) == [3]
    assert client.one("detokenize", [1, 2], model="tiny") == "[1, 2]"
    assert client.one("get_model", "tiny").name == "tiny"


@pytest.mark.parametrize(
    ("code", "seconds", "error"),
    [
        ("INVALID_ARGUMENT", None, api.InvalidRequest),
        ("NOT_FOUND", None, api.ModelNotFound),
        ("UNAUTHENTICATED", None, api.NotPermitted),
        ("PERMISSION_DENIED", None, api.NotPermitted),
        ("RESOURCE_EXHAUSTED", 60.0, api.Overloaded),
        ("UNAVAILABLE", 60.0, api.NotAvailable),
        ("UNAVAILABLE", None, api.Unreachable),
        ("DEADLINE_EXCEEDED", None, api.TimedOut),
        ("UNIMPLEMENTED", None, api.ServerTooOld),
        ("INTERNAL", None, api.ServerFault),
        ("UNKNOWN", None, api.ServerFault),
    ],
)
@pytest.mark.parametrize("method", ["texts", "get_model"])
def test_each_status_is_an_error_of_its_own_with_the_servers_words(connect, server, method, code, seconds, error):
    server.errors = [CallError(grpc.StatusCode[code], "the words", seconds)]
    client = connect()
    with pytest.raises(error, match=r"^the words$") as caught:
        client.texts("Hi") if method == "texts" else client.one(method, "tiny")
    assert type(caught.value) is error
    assert (caught.value.code.name, caught.value.retry_after_s) == (code, seconds)
    assert server.calls == 1, "what the server does not want again, or not so soon, is not asked again"


@pytest.mark.parametrize("method", ["texts", "get_model"])
def test_what_may_be_retried_is_after_the_time_that_the_server_asks_for(connect, server, method):
    server.errors = [asleep(5.0), CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", 2.0)]
    client = connect()
    client.texts("Hi") if method == "texts" else client.one(method, "tiny")
    assert server.calls == 3
    assert [round(slept) for slept in client.slept] == [5, 2]
    assert client.slept[0] >= 5.0


def test_retries_end_with_the_last_error(connect, server):
    server.errors = [asleep(0.1) for _ in range(9)]
    with pytest.raises(api.NotAvailable):
        connect(retry=api.RetryPolicy(max_attempts=3)).texts("Hi")
    assert server.calls == 3


def test_never_means_once(connect, server):
    server.errors = [asleep(0.1)]
    with pytest.raises(api.NotAvailable):
        connect(retry=api.RetryPolicy.never()).texts("Hi")
    assert server.calls == 1


def test_a_retry_that_the_time_limit_does_not_leave_room_for_is_not_waited_for(connect, server):
    server.errors = [asleep(20.0)]
    client = connect(timeout_s=10.0)
    with pytest.raises(api.NotAvailable):
        client.texts("Hi")
    assert (server.calls, client.slept) == (1, [])


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL"])
def test_an_answer_that_broke_off_is_never_asked_again(connect, server, code):
    server.break_after_first = CallError(grpc.StatusCode[code], "tiny is asleep", 0.1)
    with pytest.raises(api.Interrupted, match="tiny is asleep"):
        connect().texts("Hi")
    assert server.calls == 1


def test_a_call_ends_with_its_time_limit(connect, server):
    server.stalls = True
    with pytest.raises(api.TimedOut):
        connect().texts("Hi", timeout_s=0.2)


def test_where_nobody_answers_it_is_unreachable(connect):
    with pytest.raises(api.Unreachable):
        connect("127.0.0.1:1").one("get_model", "tiny")


def test_the_api_key_goes_with_every_call(connect, server):
    client = connect(api_key="sesame")
    client.texts("Hi")
    client.one("get_model", "tiny")
    assert [sent["authorization"] for sent in server.metadata] == ["Bearer sesame"] * 2
    assert "sesame" not in repr(client.client)


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(key):
    with pytest.raises(ValueError, match=r"^api_key holds characters that no header can hold"):
        api.Client("127.0.0.1:1", api_key=key)


def test_a_sampling_parameter_that_does_not_exist_is_named(connect):
    with pytest.raises(ValueError, match="temprature"):
        connect().texts("Hi", temprature=1)


def test_a_request_that_is_too_large_is_the_callers_fault(connect):
    with pytest.raises((api.InvalidRequest, api.Overloaded)) as caught:
        connect(retry=api.RetryPolicy.never()).texts("x" * (2 << 20))
    assert type(caught.value) is api.InvalidRequest


def test_who_stops_reading_ends_the_call(server):
    server.stalls = True
    with api.Client(server.address) as client:
        stream = client.generate_text("tiny", "Hi")
        assert next(stream) == "Hi"
        stream.close()
        assert server.ended.wait(20)


async def test_who_stops_reading_ends_the_call_in_asyncio_too(server):
    server.stalls = True
    async with api.AsyncClient(server.address) as client:
        stream = client.generate_text("tiny", "Hi")
        assert await anext(stream) == "Hi"
        await stream.aclose()
        assert await asyncio.to_thread(server.ended.wait, 20)


# --- TLS ---


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


# --- the policy ---


def error(kind, seconds=None):
    return kind("x", code=grpc.StatusCode.UNAVAILABLE, retry_after_s=seconds)


@pytest.mark.parametrize(("attempt", "least"), [(1, 0.5), (2, 1.0), (3, 2.0)])
def test_a_full_server_that_gives_no_time_is_asked_ever_later(attempt, least):
    delay = api.RetryPolicy().delay_s(error(Overloaded), attempt=attempt, left_s=None, rng=random.Random(1))
    assert least <= delay <= least * 1.1


def test_a_time_beyond_the_policys_is_not_waited_for():
    policy = api.RetryPolicy(max_delay_s=3.0)
    assert policy.delay_s(error(NotAvailable, 3.1), attempt=1, left_s=None, rng=random.Random(1)) is None
    assert policy.delay_s(error(NotAvailable, 3.0), attempt=1, left_s=None, rng=random.Random(1)) >= 3.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"max_attempts": 0}, "max_attempts is 0; the least is 1"), ({"first_delay_s": 0.0}, "first_delay_s is 0.0")],
)
def test_a_policy_that_can_not_be_names_its_field(fields, words):
    with pytest.raises(ValueError, match=words):
        api.RetryPolicy(**fields)


@pytest.mark.parametrize("name", [name for name in api.__all__ if isinstance(getattr(api, name), type)])
def test_everything_public_is_described(name):
    public = getattr(api, name)
    assert public.__doc__
    methods = [one for one in vars(public).items() if callable(one[1]) and not one[0].startswith("_")]
    assert [method for method, value in methods if not value.__doc__] == []
    assert not issubclass(public, ClientError) or len(public.__doc__) > 20
