"""The real client against a server that misbehaves: every foreign error has a name of ours."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.client import ClientSettings, KubeClient
from dormouse_kube.errors import Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, Unavailable


class Server:
    """Answers every request with what the test put there, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[web.BaseRequest] = []
        self.answer = self.say(200, {})

    @staticmethod
    def say(status, body, headers=None):
        async def answer(_request):
            text = body if isinstance(body, str) else json.dumps(body)
            return web.Response(status=status, text=text, headers=headers, content_type="application/json")

        return answer

    async def handle(self, request):
        self.requests.append(request)
        return await self.answer(request)


@pytest.fixture
async def server():
    made = Server()
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.fixture
async def calls():
    return []


@pytest.fixture
def patience():
    """How long the client waits; short only where a server is silent."""
    return ClientSettings()


@pytest.fixture
async def client(server, calls, patience):
    configuration = kubernetes_client.Configuration(host=f"http://127.0.0.1:{server.port}")
    async with KubeClient(
        kubernetes_client.ApiClient(configuration), settings=patience, on_call=lambda *call: calls.append(call)
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Invalid),
        (401, Unavailable),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (418, KubeError),
        (422, Invalid),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
async def test_every_status_has_an_error_with_the_servers_words(server, client, calls, status, error):
    server.answer = server.say(status, {"message": "the words", "reason": "Why"})
    with pytest.raises(KubeError, match="the words") as caught:
        await client.list(PODS, "a")
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.reason) == (status, "Why")
    assert calls == [("list", "pods", status)]


async def test_a_client_that_logged_in_tries_once_and_leaves_the_rest_to_its_caller(server, tmp_path):
    """The library's own retries would keep a call, and whoever waits for it, for as long as the outage lasts."""
    server.answer = server.say(503, {"message": "later"})
    heard = []
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    connected = await KubeClient.connect(kubeconfig=str(kubeconfig), on_call=lambda *call: heard.append(call))
    async with connected as client, asyncio.timeout(90):
        with pytest.raises(Unavailable, match="later"):
            await client.get(PODS, "a", "b")
    assert heard == [("get", "pods", 503)]


async def test_the_servers_wish_to_wait_is_passed_on(server, client):
    server.answer = server.say(429, {"message": "slow down"}, {"Retry-After": "7"})
    with pytest.raises(Unavailable) as caught:
        await client.list(PODS, None)
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("body", ["<html>bad gateway</html>", "[]", ""])
async def test_an_answer_of_something_in_between_is_an_outage(server, client, body):
    server.answer = server.say(502, body)
    with pytest.raises(Unavailable):
        await client.list(PODS, "a")


async def test_an_answer_that_is_no_json_is_an_outage(server, client):
    server.answer = server.say(200, "<html>")
    with pytest.raises(Unavailable, match="/api/v1/namespaces/a/pods"):
        await client.list(PODS, "a")


@pytest.mark.parametrize("patience", [ClientSettings(request_timeout_s=0.2)])
async def test_a_server_that_is_silent_or_gone_is_an_outage(server, client, calls):
    async def never(_request):
        await asyncio.sleep(3600)

    server.answer = never
    with pytest.raises(Unavailable, match=r"get /apis/inference\.dormouse\.dev/v1alpha1/namespaces/a/"):
        await client.get(INFERENCE_DEPLOYMENTS, "a", "x")
    assert calls == [("get", "inferencedeployments", 0)]


async def test_a_long_list_is_read_in_pages(server, client):
    pages = iter([(["a", "b"], "more"), (["c"], "")])

    async def page(_request):
        names, token = next(pages)
        items = [{"metadata": {"name": name}} for name in names]
        return web.json_response({"items": items, "metadata": {"continue": token, "resourceVersion": "9"}})

    server.answer = page
    listed = await client.list(PODS, None)
    assert [item["metadata"]["name"] for item in listed.items] == ["a", "b", "c"]
    assert listed.items[0]["kind"] == "Pod"
    assert listed.resource_version == "9"
    assert [request.query.get("continue") for request in server.requests] == [None, "more"]


async def test_names_can_not_leave_their_place_in_the_path(server, client):
    server.answer = server.say(404, {"message": "no"})
    assert await client.get(PODS, "a", "x?y=1") is None
    assert server.requests[0].raw_path == "/api/v1/namespaces/a/pods/x%3Fy=1"


async def watch_all(client):
    return [event async for event in client.watch(PODS, "a", resource_version="5")]


def streaming(*lines, then=None):
    """Return an answer that sends pieces of a stream and then ends, or does what `then` says."""

    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if then:
            await then()
        return response

    return answer


def event(type_, **obj):
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


async def test_events_are_put_together_from_pieces_of_any_size(server, client):
    added = event("ADDED", metadata={"name": "x" * 100_000, "resourceVersion": "6"})
    server.answer = streaming(added[:10], added[10:] + b"\n", event("BOOKMARK", metadata={"resourceVersion": "7"}))
    seen = await watch_all(client)
    assert [item.type for item in seen] == ["ADDED", "BOOKMARK"]
    query = server.requests[0].query
    assert (query["watch"], query["allowWatchBookmarks"], query["resourceVersion"]) == ("true", "true", "5")


async def test_a_version_that_is_too_old_is_gone_whether_told_by_status_or_in_the_stream(server, client):
    server.answer = streaming(event("ERROR", code=410, message="too old"))
    with pytest.raises(Gone, match="too old"):
        await watch_all(client)
    server.answer = server.say(410, {"message": "too old"})
    with pytest.raises(Gone):
        await watch_all(client)


async def test_an_error_inside_a_stream_is_an_outage(server, client):
    server.answer = streaming(event("ERROR", message="etcd is sick"))
    with pytest.raises(Unavailable, match="etcd is sick"):
        await watch_all(client)


@pytest.mark.parametrize("patience", [ClientSettings(inactivity_timeout_s=0.2)])
async def test_a_silent_stream_is_an_outage(server, client):
    async def silence():
        await asyncio.sleep(3600)

    server.answer = streaming(event("BOOKMARK", metadata={"resourceVersion": "7"}), then=silence)
    with pytest.raises(Unavailable):
        await watch_all(client)


async def test_without_credentials_there_is_one_clear_error(tmp_path):
    with pytest.raises(KubeError, match="no credentials"):
        await KubeClient.connect(kubeconfig=str(tmp_path / "none"))


def test_settings_fit_the_servers_bookmarks():
    settings = ClientSettings()
    assert settings.inactivity_timeout_s > 60, "bookmarks come about once a minute"
