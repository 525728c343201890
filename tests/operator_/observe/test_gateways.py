"""The operator's side of WatchActivity, over real sockets: against a gateway that is made up, and against ours."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from grpc import aio

from dormouse_api.names import METADATA_TICKET
from dormouse_api.testing_tickets import STRANGE_SEED, book_to_gateways
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_api.v1 import gateway_control_pb2_grpc as rpc
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import running_workers
from dormouse_kube.testing import FakeKube
from dormouse_operator.errors import GatewayLost
from dormouse_operator.model import Key
from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.observe.gateways import GrpcGateways, Report, Told
from tests.gateway.conftest import running_house
from tests.gateway.kit import ask, tokens_of

BOOK = book_to_gateways()
TINY = Key("default", "tiny")


class MadeUp(rpc.GatewayControlServicer):
    """Tells these updates, then ends or is silent."""

    def __init__(self, *updates, ends=True):
        self.updates = updates
        self.ends = ends
        self.tickets = []

    async def WatchActivity(self, request, context):  # noqa: ARG002, N802
        self.tickets += [value for key, value in context.invocation_metadata() if key == METADATA_TICKET]
        for update in self.updates:
            yield update
        if not self.ends:
            await asyncio.Event().wait()


@asynccontextmanager
async def served(servicer):
    server = aio.server()
    rpc.add_GatewayControlServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_what_a_gateway_tells_is_read_with_its_ages_on_our_clock():
    known = pb.Activity(namespace="default", name="tiny", last_request_age_seconds=5, known_age_seconds=50)
    known.MergeFrom(pb.Activity(in_flight_requests=1, held_requests=2, awake_workers=3, running_requests=4))
    known.MergeFrom(pb.Activity(waiting_requests=5, mean_kv_cache_usage=0.5))
    new = pb.Activity(namespace="default", name="new")
    gone = pb.DeploymentName(namespace="default", name="gone")
    made_up = MadeUp(pb.ActivityUpdate(activities=[known, new], removed=[gone], is_complete=True))
    async with served(made_up) as address:
        stream = GrpcGateways("x:1", BOOK, clock=lambda: 100.0).watch(address)
        told = await anext(stream)
        with pytest.raises(GatewayLost, match=rf"{address} ended"):
            await anext(stream)
    nothing = {"held": 0, "awake_workers": 0, "running": 0, "waiting": 0, "mean_kv_cache_usage": 0.0}
    assert told == Told(
        {
            TINY: Report(
                in_flight=1,
                held=2,
                last_request_s=95.0,
                known_since_s=50.0,
                awake_workers=3,
                running=4,
                waiting=5,
                mean_kv_cache_usage=0.5,
            ),
            Key("default", "new"): Report(in_flight=0, last_request_s=None, known_since_s=100.0, **nothing),
        },
        (Key("default", "gone"),),
        is_complete=True,
    )
    assert [ticket.split(";")[:2] for ticket in made_up.tickets] == [["operator", "127.0.0.1"]]


async def test_a_gateway_that_is_silent_is_lost():
    async with served(MadeUp(pb.ActivityUpdate(), ends=False)) as address:
        with pytest.raises(GatewayLost, match=r"was silent for 0\.05 s"):
            [_ async for _ in GrpcGateways("x:1", BOOK, silence_s=0.05).watch(address)]


async def test_a_gateway_that_is_not_there_is_lost():
    with pytest.raises(GatewayLost, match="does not accept connections"):
        await anext(GrpcGateways("x:1", BOOK).watch("127.0.0.1:1"))


async def test_gateways_are_found_by_the_addresses_of_their_name():
    assert await GrpcGateways("127.0.0.1:50052", BOOK).find() == {"127.0.0.1:50052"}
    assert await GrpcGateways("::1:50052", BOOK).find() == {"[::1]:50052"}
    with pytest.raises(GatewayLost, match=r"no gateway is found under nobody\.invalid"):
        await GrpcGateways("nobody.invalid:50052", BOOK).find()


async def test_our_own_gateway_is_understood():
    async with running_workers(1) as workers, running_house(ControlledKube()) as house:
        workers[0].tell_load(running_requests=1, kv_cache_usage=0.25)
        workers[0].is_gated = True
        await house.add("tiny", workers)
        answer = asyncio.create_task(tokens_of(ask(house)))
        await workers[0].started.wait()
        clock = asyncio.get_running_loop().time
        book, address = ActivityBook(clock), f"127.0.0.1:{house.ports.control}"
        stream = GrpcGateways("x:1", BOOK, clock=clock).watch(address)
        while TINY not in book or not book[TINY].awake_workers:
            book.take(address, await anext(stream))
        assert (book[TINY].in_flight, book[TINY].running, book[TINY].mean_kv_cache_usage) == (1, 1, 0.25)
        assert book[TINY].quiet_s == 0.0
        workers[0].gate.set()
        workers[0].tell_load()
        await answer
        while book[TINY].outstanding:
            book.take(address, await anext(stream))
        assert book[TINY].quiet_s < 60.0
        await stream.aclose()


async def test_a_caller_who_is_not_the_operator_hears_why():
    async with running_house(FakeKube()) as house:
        with pytest.raises(GatewayLost, match="PERMISSION_DENIED"):
            await anext(GrpcGateways("x:1", book_to_gateways(STRANGE_SEED)).watch(f"127.0.0.1:{house.ports.control}"))
