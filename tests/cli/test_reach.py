"""How `generate` and its fellows find the model: an address, this machine, or the cluster's gateway, forwarded."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.tunnel import forwarded
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, SERVICES
from dormouse_kube.errors import Forbidden, KubeError
from tests.cli import kit
from tests.waiting import until


class Gateway(rpc.InferenceServicer):
    """Remembers which model it was asked for."""

    def __init__(self):
        self.models = []
        self.keys = []

    def Generate(self, request, context):  # noqa: N802  # the name on the wire
        self.models.append(request.model)
        self.keys.append(dict(context.invocation_metadata()).get("authorization"))
        yield pb.GenerateResponse(text="Hello", finish_reason=pb.FINISH_REASON_STOP)


@pytest.fixture
def gateway():
    servicer = Gateway()
    with kit.serving(servicer) as servicer.port:
        yield servicer


def gateway_pod(name="gw-1", *, is_ready=True):
    ready = {"type": "Ready", "status": str(is_ready)}
    return {
        "metadata": {"name": name, "namespace": "dormouse", "labels": {"app": "gw"}},
        "status": {"conditions": [ready]},
    }


@pytest.fixture
def installed(gateway):
    """A cluster whose gateway's pod is the server; nothing listens on this machine's own port."""
    fake = kit.cluster(kit.deployment(), pods=(gateway_pod("gw-0", is_ready=False), gateway_pod()))
    service = {"metadata": {"name": "dormouse-gateway", "namespace": "dormouse"}, "spec": {"selector": {"app": "gw"}}}
    fake.put(SERVICES, service)
    fake.ports["gw-1"] = gateway.port
    return fake


def test_without_an_address_a_ready_gateway_is_found_and_forwarded(dormouse, installed, gateway):
    result = dormouse(installed, "generate", "Hi", "--model", "tiny")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "")
    assert installed.forwards == [("dormouse/gw-1", 50051)]
    assert gateway.models == ["default/tiny"], "the gateway knows it by its full name"


def test_a_models_namespace_may_stand_in_its_name(dormouse, installed, gateway):
    installed.put(INFERENCE_DEPLOYMENTS, kit.deployment("big", "team"))
    assert dormouse(installed, "generate", "Hi", "--model", "team/big").exit_code == 0
    assert gateway.models == ["team/big"]


def test_an_adapter_is_asked_for_behind_its_base(installed, gateway, dormouse):
    installed.put(INFERENCE_DEPLOYMENTS, kit.deployment("big", "team"))
    for name in ("tiny:sql", "team/big:org/sql"):
        assert dormouse(installed, "generate", "Hi", "--model", name).exit_code == 0
    assert gateway.models == ["default/tiny:sql", "team/big:org/sql"]


def test_a_chat_goes_the_same_way_with_the_api_key(dormouse, installed, gateway):
    result = dormouse(installed, "chat", "--model", "tiny", "--api-key", "sesame", stdin="Hi\n")
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert gateway.keys == ["Bearer sesame"]


def test_an_unknown_model_suggests_names_that_are_near(dormouse, installed):
    result = dormouse(installed, "generate", "Hi", "--model", "tinny")
    assert (result.exit_code, "did you mean tiny?" in result.stderr) == (5, True)


def without_url(fake):
    fake.edit(INFERENCE_DEPLOYMENTS, "default", "tiny", lambda raw: raw["status"].pop("url"))


def without_service(fake):
    fake.edit(INFERENCE_DEPLOYMENTS, "default", "tiny", lambda raw: raw["status"].update(url="other.dormouse.svc:1"))


def without_ready_pod(fake):
    fake.put(PODS, gateway_pod(is_ready=False))


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (without_url, 1, "the status of tiny names no gateway (status.url); give one with --address"),
        (without_service, 5, "the gateway's Service dormouse/other is not there"),
        (without_ready_pod, 1, "no pod of the gateway dormouse/dormouse-gateway is ready"),
    ],
)
def test_a_gateway_that_can_not_be_found_is_told(dormouse, installed, change, code, words):
    change(installed)
    result = dormouse(installed, "generate", "Hi", "--model", "tiny")
    assert (result.exit_code, words in result.stderr) == (code, True)


def test_the_missing_right_to_forward_is_named(dormouse, installed):
    words = 'services "x" is forbidden: User "x" cannot get resource "services"'
    installed.fail("get", SERVICES, Forbidden(words, status=403))
    result = dormouse(installed, "generate", "Hi", "--model", "tiny")
    assert (result.exit_code, 'cannot get resource "services"' in result.stderr) == (4, True)


def test_with_neither_a_listener_nor_a_cluster_both_are_said(dormouse, installed):
    error = CommandFailed("no credentials", code=ExitCode.NO_CLUSTER)
    result = dormouse(installed, "generate", "Hi", "--model", "tiny", error=error)
    assert result.exit_code == 3
    assert result.stderr == (
        "error: nothing listens on 127.0.0.1:1 (see --address), and of a cluster: no credentials\n"
    )


def test_what_listens_on_this_machine_is_used_first(dormouse, installed, gateway):
    here = f"127.0.0.1:{gateway.port}"
    assert dormouse(installed, "generate", "Hi", "--model", "tiny", here=here).stdout == "Hello\n"
    assert (installed.forwards, gateway.models) == ([], ["tiny"])


def test_an_older_server_is_called_that(dormouse, installed):
    result = dormouse(installed, "tokenize", "Hi", "--model", "tiny")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: UNIMPLEMENTED: ")
    assert "is older than this command line, or serves something else" in result.stderr


def test_a_ca_that_can_not_be_read_is_named(dormouse, installed):
    result = dormouse(installed, "generate", "Hi", "--model", "tiny", "--tls-ca", "/no/ca.pem")
    assert (result.exit_code, "--tls-ca /no/ca.pem cannot be read" in result.stderr) == (2, True)


# --- the tunnel ---


class Echo:
    """A Pipe that sends back what it gets; ends after "end"."""

    def __init__(self):
        self.queue = asyncio.Queue()
        self.is_closed = False

    async def send(self, data):
        await self.queue.put(b"" if data == b"end" else data.upper())

    async def receive(self):
        return await self.queue.get()

    async def close(self):
        self.is_closed = True


async def test_each_connection_gets_a_pipe_of_its_own_and_bytes_pass_both_ways():
    pipes = []

    async def connect():
        pipes.append(Echo())
        return pipes[-1]

    async with forwarded(connect) as port:
        for word in (b"one", b"two"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(word)
            assert await reader.readexactly(3) == word.upper()
            writer.write(b"end")
            assert await reader.read() == b"", "the pod's end is the client's"
            writer.close()
    await until(lambda: all(pipe.is_closed for pipe in pipes))
    assert len(pipes) == 3, "one was tried before anybody came"


async def test_what_can_not_be_forwarded_is_told_before_anybody_connects():
    async def connect():
        raise Forbidden('cannot create resource "pods/portforward"', status=403)

    with pytest.raises(Forbidden):
        async with forwarded(connect):
            pytest.fail("there is nothing to connect to")


async def test_a_connection_whose_pipe_fails_is_closed_and_the_next_is_tried():
    pipes = [Echo(), KubeError("gone"), Echo()]

    async def connect():
        pipe = pipes.pop(0)
        if isinstance(pipe, Exception):
            raise pipe
        return pipe

    async with forwarded(connect) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"X"
        writer.close()
