"""The program around the proxy: health, readiness, metrics, roles, the end of its life."""

import asyncio

import aiohttp
import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dormouse_api.names import Role
from dormouse_api.testing_tickets import STRANGE_SEED, book_to_gateways, proof, public_key
from dormouse_api.tickets import TicketCheck, public_check
from dormouse_api.v1 import gateway_control_pb2 as control_pb
from dormouse_api.v1 import gateway_control_pb2_grpc as control_rpc
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_kube.api import ENDPOINT_SLICES, PODS
from dormouse_kube.errors import Unavailable

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(house, service=""):
    stub = health_pb2_grpc.HealthStub(house.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=90)).status


async def get(house, path):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{house.ports.http}{path}") as response,
    ):
        return response.status, await response.text()


def generate(house, **how):
    return house.stub.Generate(pb.GenerateRequest(model="tiny", text="a"), timeout=90, **how)


async def first_refusal(house):
    """Send requests until one is refused, and return its code."""
    try:
        while True:
            call = generate(house)
            await call.read()
            call.cancel()
    except grpc.RpcError as error:
        return error.code()


async def test_it_serves_once_both_watches_have_listed(make_house, kube):
    kube.fail("list", ENDPOINT_SLICES, Unavailable("not yet"), times=1)
    async with make_house(is_synced=False) as house:
        assert await health_of(house) == NOT_SERVING
        assert (await get(house, "/readyz"))[0] == 503
        assert (await get(house, "/healthz"))[0] == 200, "waiting for the API server is no reason to be killed"
        await house.until(lambda: house.gateway.router.is_synced)
        for service in ("", "dormouse.v1.Inference", "dormouse.v1.GatewayControl"):
            assert await health_of(house, service) == SERVING
        assert (await get(house, "/readyz"))[0] == 200


async def test_workers_see_the_gateways_role_and_not_what_a_client_pretends(house, workers):
    await house.add("tiny", workers[:1])
    pretended = (("dormouse-ticket", "stolen"), ("dormouse-cache-salt", "x"), ("traceparent", "00-1"))
    async for _ in generate(house, metadata=aio.Metadata(*pretended)):
        pass
    seen = workers[0].seen[0]
    uid = house.kube.everything(PODS)[0]["metadata"]["uid"]
    assert TicketCheck([uid], KNOWN).role_of(seen.metadata) is Role.GATEWAY
    assert TicketCheck(["another"], KNOWN).role_of(seen.metadata) is Role.CLIENT
    assert len(seen.values("dormouse-ticket")) == 1
    assert seen.values("dormouse-cache-salt") == []
    assert seen.values("traceparent") == ["00-1"]


async def test_a_message_over_the_limit_is_invalid_argument_and_names_it(house, workers):
    await house.add("tiny", workers[:1])
    with pytest.raises(grpc.RpcError) as caught:
        await house.stub.Generate(pb.GenerateRequest(model="tiny", text="a" * (1 << 20)), timeout=90).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "1048576" in caught.value.details()
    assert workers[0].seen == []


async def test_a_message_of_the_largest_size_reaches_the_worker(house, workers):
    """Seed and request id make it longer on the way; what the worker thinks of that is the worker's to say."""
    await house.add("tiny", workers[:1])
    request = pb.GenerateRequest(model="tiny")
    request.text = "a" * ((1 << 20) - request.ByteSize() - 4)  # key and length of the text
    assert request.ByteSize() == 1 << 20
    assert [response async for response in house.stub.Generate(request, timeout=90)]
    assert workers[0].seen[0].request.ByteSize() > 1 << 20


KNOWN = {Role.GATEWAY: [public_check(public_key(Role.GATEWAY))]}
STRANGERS = {  # made when they are shown: tickets last a minute, and one that ended would be refused for that
    "nothing": lambda: (),
    "the gateway's own ticket": lambda: proof(Role.GATEWAY, "127.0.0.1"),
    "a guess": lambda: book_to_gateways(STRANGE_SEED).proof("127.0.0.1"),
    "what another gateway was shown": lambda: book_to_gateways().proof("10.0.0.7"),
    "what a worker was shown": lambda: proof(Role.OPERATOR, "127.0.0.1"),
}


@pytest.mark.parametrize("shown", STRANGERS.values(), ids=STRANGERS)
async def test_the_control_port_refuses_all_but_the_operator(house, shown):
    async with aio.insecure_channel(f"127.0.0.1:{house.ports.control}") as channel:
        stub = control_rpc.GatewayControlStub(channel)
        metadata = aio.Metadata(*shown())
        with pytest.raises(grpc.RpcError) as caught:
            await stub.WatchActivity(control_pb.WatchActivityRequest(), metadata=metadata, timeout=90).read()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "operator" in caught.value.details()


@pytest.mark.parametrize("is_on", [True, False])
async def test_reflection_is_a_switch(make_house, is_on):
    async with make_house(enable_reflection=is_on) as house:
        stub = reflection_pb2_grpc.ServerReflectionStub(house.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        if is_on:
            call = stub.ServerReflectionInfo(iter([request]), timeout=90)
            names = [service.name for service in (await call.read()).list_services_response.service]
            assert "dormouse.v1.Inference" in names
        else:  # nothing is sent: grpc's client says INTERNAL where the answer overtakes a message
            call = stub.ServerReflectionInfo(timeout=90)
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metrics_are_shown_over_http(house, workers):
    await house.add("tiny", workers[:1])
    async for _ in generate(house):
        pass
    status, text = await get(house, "/metrics")
    assert status == 200
    for line in (
        'dormouse_gateway_requests_total{code="OK",method="Generate",model="default/tiny"} 1.0',
        'dormouse_gateway_in_flight{model="default/tiny"} 0.0',
        'dormouse_gateway_endpoints{model="default/tiny",state="ready"} 1.0',
        'dormouse_gateway_request_seconds_count{method="Generate",model="default/tiny"} 1.0',
    ):
        assert line in text


async def test_at_the_end_running_requests_finish_and_new_ones_are_refused(house, workers):
    await house.add("tiny", workers[:1])
    workers[0].is_gated = True
    call = generate(house)
    await call.read()
    house.stop.set()
    await house.until(lambda: not house.gateway._is_ready)
    assert (await get(house, "/readyz"))[0] == 503
    await house.until(lambda: "ready=False" in repr(house.gateway))
    assert await first_refusal(house) is grpc.StatusCode.UNAVAILABLE
    workers[0].gate.set()
    rest = []
    while (response := await call.read()) is not aio.EOF:
        rest += response.token_ids
    assert rest == [2, 3]
    await house.running
    assert house.outstanding() == 0


async def test_in_the_lame_duck_time_requests_are_still_taken_but_health_says_no(make_house, workers):
    async with make_house(lame_duck_s=0.5) as house:
        await house.add("tiny", workers[:1])
        house.stop.set()
        await house.until(lambda: not house.gateway._is_ready)
        assert await health_of(house, "dormouse.v1.Inference") == NOT_SERVING
        assert [response async for response in generate(house)]
        await house.running


async def test_who_goes_on_calling_a_gateway_that_ends_is_served(make_house, workers):
    async with make_house(lame_duck_s=0.1) as house:
        await house.add("tiny", workers[:1])
        house.stop.set()
        await house.until(lambda: not house.gateway._is_ready)
        for _ in range(6):
            assert [response async for response in generate(house)]
            await asyncio.sleep(0.1)
        await house.running


async def test_a_request_that_outlives_the_drain_timeout_is_cut_off(make_house, workers):
    async with make_house(drain_timeout_s=0.1) as house:
        await house.add("tiny", workers[:1])
        workers[0].is_gated = True
        call = generate(house)
        await call.read()
        house.stop.set()
        await house.running
        with pytest.raises(grpc.RpcError):
            await call.read()
        await workers[0].cancelled.wait()


async def test_a_watch_that_ends_by_a_mistake_of_ours_ends_the_program(make_house, kube):
    kube.fail("list", ENDPOINT_SLICES, ZeroDivisionError("a bug"))
    with pytest.raises(ExceptionGroup) as caught:
        async with make_house(is_synced=False) as house:
            await asyncio.wait({house.running})
    assert caught.group_contains(ZeroDivisionError)


async def test_a_mistake_of_ours_is_an_internal_error_with_an_id_that_stands_in_the_log(house, workers, caplog):
    await house.add("tiny", workers[:1])
    house.gateway.channels._ways[house.gateway.router.pool._slots["default", "tiny-w0"].endpoint.id] = _Broken()
    with pytest.raises(grpc.RpcError) as caught:
        await generate(house).read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    error_id = caught.value.details().split()[5]
    assert error_id in caplog.text
    assert house.outstanding() == 0


class _Broken:
    async def aclose(self):
        """Stand in for a way to a worker at the end."""
