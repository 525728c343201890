"""The real Cluster over HTTP: paths, queries and bodies, answers, errors, and the websocket of a port-forward."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web

from dormouse_cli.cluster import LogQuery, Target
from dormouse_cli.cluster_client import check_kubeconfig, default_namespace, open_cluster
from dormouse_cli.errors import CommandFailed
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Forbidden, NotFound


class Api:
    """An API server that answers what the test sets, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.answers = {"/version": {"gitVersion": "v1.34.1"}}
        self.log = b""
        self.status = 200

    async def handle(self, request):
        body = await request.read()
        self.asked.append((request.method, request.path, dict(request.query), body, dict(request.headers)))
        if self.status != 200:
            return web.json_response({"message": "the words", "reason": "X"}, status=self.status)
        if request.path.endswith("/portforward"):
            return await self.forward(request)
        if request.path.endswith("/log"):
            return web.Response(body=self.log)
        return web.json_response(self.answers.get(request.path, {}))

    async def forward(self, request):
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        port = int(request.query["ports"]).to_bytes(2, "little")
        await socket.send_bytes(b"\x00" + port)
        await socket.send_bytes(b"\x01" + port)
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            assert message.data[0] == 0
            if message.data[1:] == b"end":
                await socket.send_bytes(b"\x01no such port")
                break
            await socket.send_bytes(b"\x00" + message.data[1:].upper())
        return socket


@asynccontextmanager
async def opened(tmp_path, api, namespace="team"):
    server = web.Server(api.handle)
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    file = kubeconfig(tmp_path, f"http://127.0.0.1:{port}", namespace)
    try:
        async with open_cluster(Target(kubeconfig=file)) as found:
            yield found
    finally:
        await runner.cleanup()


def kubeconfig(tmp_path, server, namespace="team"):
    contexts = [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}},
        {"name": "bare", "context": {"cluster": "c", "user": "u"}},
    ]
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "sesame"}}],
        "contexts": contexts,
        "current-context": "here",
    }
    file = tmp_path / "config"
    file.write_text(json.dumps(whole))
    return str(file)


@pytest.fixture
def api():
    return Api()


async def test_the_kubeconfig_says_server_namespace_and_who_we_are(tmp_path, api):
    async with opened(tmp_path, api) as found:
        assert found.namespace == "team"
        assert await found.cluster.server_version() == "v1.34.1"
        assert found.cluster.address.startswith("http://127.0.0.1:")
    assert api.asked[0][4]["Authorization"] == "Bearer sesame"


@pytest.mark.parametrize(("context", "namespace"), [(None, "team"), ("here", "team"), ("bare", "default")])
def test_the_default_namespace_is_that_of_the_context(tmp_path, context, namespace):
    file = kubeconfig(tmp_path, "http://127.0.0.1:1")
    assert default_namespace(Target(kubeconfig=file, context=context)) == namespace


async def test_a_patch_is_a_strict_merge_in_our_name(tmp_path, api):
    path = "/apis/inference.dormouse.dev/v1alpha1/namespaces/team/inferencedeployments/tiny"
    api.answers[path] = {"metadata": {"name": "tiny"}}
    change = {"spec": {"lifecycle": {"desiredState": "Asleep", "level1AfterSeconds": None}}}
    async with opened(tmp_path, api) as found:
        answer = await found.cluster.patch(INFERENCE_DEPLOYMENTS, "team", "tiny", change)
    assert answer == api.answers[path]
    method, asked, query, body, headers = api.asked[0]
    assert (method, asked) == ("PATCH", path)
    assert query == {"fieldManager": "dormouse", "fieldValidation": "Strict"}
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(body) == change, "a null is sent as one"


async def test_a_right_is_asked_for_as_rbac_names_it(tmp_path, api):
    api.answers["/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"] = {"status": {"allowed": True}}
    async with opened(tmp_path, api) as found:
        assert await found.cluster.may("get", "pods/log", "", "team")
    asked = json.loads(api.asked[0][3])["spec"]["resourceAttributes"]
    assert asked["resource"] == "pods"
    assert (asked["subresource"], asked["verb"], asked["namespace"]) == ("log", "get", "team")


async def test_lines_of_a_log_come_whole_with_what_was_asked_for(tmp_path, api):
    api.log = b"1 one\n2 " + b"x" * 200_000 + b"\n3 last"
    query = LogQuery("worker", tail_lines=5, since_s=60, previous=True)
    async with opened(tmp_path, api) as found:
        lines = [line async for line in found.cluster.logs("team", "tiny-0", query)]
    assert [line[:6] for line in lines] == ["1 one", "2 xxxx", "3 last"]
    assert api.asked[0][2] == {
        "container": "worker",
        "timestamps": "true",
        "previous": "true",
        "tailLines": "5",
        "sinceSeconds": "60",
    }


async def test_metrics_are_read_through_the_api_server(tmp_path, api):
    async with opened(tmp_path, api) as found:
        await found.cluster.metrics("team", "tiny-0", 8080)
    assert api.asked[0][1] == "/api/v1/namespaces/team/pods/tiny-0:8080/proxy/metrics"


@pytest.mark.parametrize(("status", "error"), [(403, Forbidden), (404, NotFound)])
async def test_what_the_server_refuses_is_our_error(tmp_path, api, status, error):
    api.status = status
    with pytest.raises(CommandFailed, match="the words") as caught:
        async with opened(tmp_path, api) as found:
            await found.cluster.server_version()
    assert isinstance(caught.value.__cause__, error)


async def test_bytes_pass_a_forwarded_port_both_ways(tmp_path, api):
    async with opened(tmp_path, api) as found, found.cluster.forward("team", "gw-1", 50051) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for word in (b"hello", b"again"):
            writer.write(word)
            assert await reader.readexactly(5) == word.upper()
        writer.write(b"end")
        assert await reader.read() == b"", "an error of the kubelet ends the connection"
        writer.close()
    path, query = api.asked[-1][1], api.asked[-1][2]
    assert (path, query) == ("/api/v1/namespaces/team/pods/gw-1/portforward", {"ports": "50051"})


async def test_a_port_that_may_not_be_forwarded_is_told_at_once(tmp_path, api):
    async with opened(tmp_path, api) as found:
        await found.cluster.server_version()
        api.status = 403
        with pytest.raises(Forbidden):
            await found.cluster.forward("team", "gw-1", 50051).__aenter__()


def test_a_kubeconfig_of_several_files_needs_one_of_them(tmp_path):
    file = kubeconfig(tmp_path, "http://127.0.0.1:1")
    check_kubeconfig(f"{tmp_path / 'none'}:{file}")
    with pytest.raises(CommandFailed, match=r"none and .*nil is not there"):
        check_kubeconfig(f"{tmp_path / 'none'}:{tmp_path / 'nil'}")


def test_the_default_kubeconfig_is_named_where_it_is_missing(tmp_path):
    with pytest.raises(CommandFailed, match=r"\.kube/config is not there; name one with --kubeconfig or KUBECONFIG"):
        check_kubeconfig(None, home=tmp_path)
