"""What the endpoint picker protocol says beyond what our Envoy does: asked by hand, message by message."""

import json
import subprocess

import grpc
import pytest
from grpc import aio

from bench.envoy.process import BINARY
from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_gateway.testing.workers import infd, pod, set_ready
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, INFERENCE_KEYS, PODS
from tests.gateway.clients.test_inference_keys import infk
from tests.gateway.picker.conftest import CHAT, HI, KEY
from tests.waiting import until
from tools.bootstrap import ROOT

MODE = pb.ProcessingMode
BODY = json.dumps(HI).encode()
DESTINATION = "x-gateway-destination-endpoint"
SECONDS = 30


def http_headers(headers):
    pairs = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=pairs))


def head(*, mode=MODE.FULL_DUPLEX_STREAMED, response_mode=MODE.NONE, subset=None, headers=()):
    said = [(":method", "POST"), (":path", CHAT), ("content-type", "application/json"), *headers]
    message = pb.ProcessingRequest(
        request_headers=http_headers(said),
        protocol_config=pb.ProtocolConfiguration(request_body_mode=mode, response_body_mode=response_mode),
    )
    if subset is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint["x-gateway-destination-endpoint-subset"] = subset
    return message


def body(raw=BODY, *, is_last=True):
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=raw, end_of_stream=is_last))


def answered(*headers):
    """Return a good response's headers."""
    return pb.ProcessingRequest(response_headers=http_headers([(":status", "200"), *headers]))


def answered_body(raw):
    """Return a response's whole body."""
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=raw, end_of_stream=True))


async def sent_on(picker, **said):
    """Return a conversation up to where the request goes."""
    call = picker.Process(timeout=SECONDS)
    for message in (head(mode=MODE.BUFFERED, **said), body()):
        await call.write(message)
        await call.read()
    return call


async def answer(picker, *messages):
    """Return the first answer after these messages."""
    call = picker.Process(timeout=SECONDS)
    for message in messages:
        await call.write(message)
    told = await call.read()
    call.cancel()
    return told


async def test_the_destination_stands_in_the_header_and_in_the_metadata(town, picker):
    told = await answer(picker, head(), body(BODY[:9], is_last=False), body(BODY[9:]))
    options = told.request_headers.response.header_mutation.set_headers
    said = {option.header.key: option.header.raw_value.decode() for option in options}
    assert said[DESTINATION] in {f"127.0.0.1:{port}" for port in town.http_ports}
    assert told.dynamic_metadata["envoy.lb"][DESTINATION] == said[DESTINATION]
    assert told.request_headers.response.clear_route_cache


@pytest.mark.parametrize("index", [0, 1])
async def test_only_endpoints_that_the_data_plane_allows_are_chosen(town, picker, index):
    allowed = f"127.0.0.1:{town.http_ports[index]}"
    for _ in range(4):
        told = await answer(picker, head(subset=["10.9.9.9:8000", allowed]), body())
        assert told.dynamic_metadata["envoy.lb"][DESTINATION] == allowed


async def picked(picker, times=4):
    """Return the addresses to which so many requests are sent."""
    told = [await answer(picker, head(), body()) for _ in range(times)]
    return {each.dynamic_metadata["envoy.lb"][DESTINATION] for each in told}


async def test_a_pod_that_left_its_service_gets_nothing_while_another_is_there(town, picker):
    places = [f"127.0.0.1:{port}" for port in town.http_ports]
    set_ready(town.house.kube, "tiny-w0", ready=False)
    await until(lambda: not all(each.ready for each in town.router.pool.endpoints_of(KEY)))
    assert await picked(picker) == {places[1]}
    town.workers[1].tell_load(ready=False)
    await until(lambda: town.router.pool.num_ready(KEY) == 1)
    assert await picked(picker) == {places[0]}, "whose worker serves: a pod that woke is in its Service a little later"
    set_ready(town.house.kube, "tiny-w1", ready=False)
    await until(lambda: not any(each.ready for each in town.router.pool.endpoints_of(KEY)))
    told = await answer(picker, head(subset=places), body())
    assert told.dynamic_metadata["envoy.lb"][DESTINATION] == places[0]


@pytest.mark.parametrize("subset", [[], ["10.9.9.9:8000"]])
async def test_where_it_allows_none_of_ours_the_answer_is_503(town, picker, subset):
    told = await answer(picker, head(subset=subset), body())
    assert told.immediate_response.status.code == 503
    assert town.is_quiet()


async def test_a_canary_that_the_data_plane_does_not_allow_gets_nothing(town, picker):
    canary = infd("next", serving={"inferencePool": True}, canary={"of": "tiny", "weight": 100})
    town.house.kube.put(INFERENCE_DEPLOYMENTS, canary)
    town.house.kube.put(PODS, pod("next-w", "next", "127.0.0.2:1", uid="uid-next", http_port=8000))
    await until(lambda: town.router.catalogue.canary_of(KEY))
    allowed = [f"127.0.0.1:{port}" for port in town.http_ports]
    told = await answer(picker, head(subset=allowed), body())
    assert told.dynamic_metadata["envoy.lb"][DESTINATION] in allowed


@pytest.mark.parametrize("mode", [MODE.NONE, MODE.STREAMED, MODE.BUFFERED_PARTIAL])
async def test_a_filter_that_brings_no_whole_body_is_told_its_setting(picker, mode):
    told = (await answer(picker, head(mode=mode))).immediate_response
    assert told.status.code == 500
    assert f"request_body_mode is {MODE.BodySendMode.Name(mode)}" in told.body.decode()


async def test_trailers_of_requests_are_refused_and_half_a_body_ends_with_its_sender(picker):
    trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
    told = await answer(picker, head(), body(b"{", is_last=False), trailers)
    assert told.immediate_response.status.code == 400
    call = picker.Process(timeout=SECONDS)
    await call.write(head(mode=MODE.BUFFERED))
    assert (await call.read()).WhichOneof("response") == "request_headers"
    await call.write(body(b"{", is_last=False))
    await call.done_writing()
    assert await call.read() is aio.EOF


@pytest.mark.parametrize("mode", [MODE.NONE, MODE.STREAMED])
async def test_a_response_that_says_its_length_ends_the_conversation_and_the_request(town, picker, mode):
    call = await sent_on(picker, response_mode=mode)
    assert town.house.outstanding() == 1
    await call.write(answered(("content-length", "3")))
    assert (await call.read()).WhichOneof("response") == "response_headers"
    assert await call.read() is aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await until(town.is_quiet)


@pytest.mark.parametrize(
    ("mode", "length"),
    [(MODE.STREAMED, ()), (MODE.FULL_DUPLEX_STREAMED, [("content-length", "3")])],
    ids=["of-no-length", "given-away"],
)
async def test_any_other_response_is_followed_to_its_end(town, picker, mode, length):
    call = await sent_on(picker, response_mode=mode)
    for message in (answered(*length), answered_body(b"abc")):
        assert town.house.outstanding() == 1
        await call.write(message)
        assert (await call.read()).WhichOneof("response") == message.WhichOneof("request")
    assert await call.read() is aio.EOF
    await until(town.is_quiet)


async def test_a_key_with_limits_pays_by_what_the_body_says(town, picker):
    town.house.kube.put(INFERENCE_KEYS, infk("a", tokensPerMinute=30_000))
    bearer = ("authorization", "Bearer a-secret")
    await until(lambda: town.house.gateway._keys.identify((bearer,)).key)
    usage = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 60_000}}).encode()
    call = await sent_on(picker, response_mode=MODE.STREAMED, headers=[bearer])
    for message in (answered(("content-length", str(len(usage)))), answered_body(usage)):
        await call.write(message)
        await call.read()
    assert await call.read() is aio.EOF
    assert (await answer(picker, head(headers=[bearer]), body())).immediate_response.status.code == 429


async def test_a_conversation_that_begins_with_something_else_is_no_request(picker):
    with pytest.raises(grpc.RpcError) as caught:
        await answer(picker, body())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "request_header_mode must be SEND" in caught.value.details()


async def test_the_ticket_is_the_gateways_and_what_a_client_sent_goes(picker):
    told = await answer(picker, head(headers=[("dormouse-ticket", "stolen"), ("x-api-key", "k")]), body())
    mutation = told.request_headers.response.header_mutation
    assert {"dormouse-ticket", "x-api-key"} <= set(mutation.remove_headers)
    tickets = [each.header.raw_value for each in mutation.set_headers if each.header.key == "dormouse-ticket"]
    assert len(tickets) == 1
    assert tickets[0].startswith(b"gateway;uid-")


def test_the_example_is_a_configuration_that_envoy_takes():
    flags = ["--mode", "validate", "-c", str(ROOT / "examples/envoy/envoy.yaml")]
    said = subprocess.run([BINARY, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stderr
