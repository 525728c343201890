"""The operator answers gateways over real connections; a break opens no limit."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from grpc import aio

from dormouse_api.quotas import Quota
from dormouse_api.testing_tickets import book_to_gateways
from dormouse_api.v1 import gateway_control_pb2_grpc as rpc
from dormouse_gateway.activity import ActivityLog
from dormouse_gateway.clients.counting import Counting, LimitReached
from dormouse_gateway.clients.key_files import ApiKey
from dormouse_gateway.control import GatewayControl
from dormouse_operator.errors import GatewayLost
from dormouse_operator.limits.counter import LimitCounter
from dormouse_operator.limits.streams import LimitStreams
from dormouse_operator.observe.gateways import GrpcGateways
from tests.waiting import until

NUM_GATEWAYS = 4


class Here(GrpcGateways):
    """Gateways of this process."""

    def __init__(self, addresses):
        super().__init__("nobody.invalid:1", book_to_gateways(), clock=time.monotonic)
        self.addresses, self.is_lost = addresses, False

    async def find(self):
        if self.is_lost:
            raise GatewayLost("nobody is found")
        return frozenset(self.addresses)


def key(**limits):
    return ApiKey("team/a", b"", quota=Quota(**limits))


@asynccontextmanager
async def gateway():
    counting = Counting(num_gateways=NUM_GATEWAYS, answer_s=60.0)  # a slow machine is no silent operator
    server = aio.server()
    control = GatewayControl(ActivityLog(), counting, is_synced=lambda: True)
    rpc.add_GatewayControlServicer_to_server(control, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield counting, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def operator(gateways, base=None):
    counter = LimitCounter(clock=time.monotonic, wall=time.time, base=lambda _: base)
    streams = LimitStreams(gateways, counter)
    running = asyncio.create_task(streams.run())
    try:
        yield streams
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def tried(counting, api_key, times):
    """Return how many of so many requests were let in."""

    async def one():
        try:
            async with counting.admit(api_key, 1):
                return 1
        except LimitReached:
            return 0

    return sum(await asyncio.gather(*(one() for _ in range(times))))


@pytest.fixture
async def four():
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(gateway()) for _ in range(NUM_GATEWAYS)]


async def all_tried(four, api_key, times):
    return await asyncio.gather(*(tried(counting, api_key, times) for counting, _ in four))


async def test_four_gateways_let_through_what_the_limit_says_at_ten_times_its_rate(four):
    async with operator(Here([address for _, address in four])) as streams:
        await until(lambda: all(counting.is_shared for counting, _ in four))
        assert sum(await all_tried(four, key(requests_per_minute=40), 100)) == 40
        assert repr(streams) == "LimitStreams(4 gateways, LimitCounter(1 keys))"


async def test_who_has_all_the_traffic_gets_the_whole_limit(four):
    async with operator(Here([address for _, address in four])):
        await until(lambda: all(counting.is_shared for counting, _ in four))
        assert await tried(four[2][0], key(requests_per_minute=40), 100) == 40


async def test_an_operator_that_goes_and_comes_opens_no_limit(four):
    gateways, limited = Here([address for _, address in four]), key(requests_per_minute=40)
    async with operator(gateways):
        await until(lambda: all(counting.is_shared for counting, _ in four))
        assert await tried(four[0][0], limited, 8) == 8
    await until(lambda: not any(counting.is_shared for counting, _ in four))
    assert await all_tried(four, limited, 100) == [2, 10, 10, 10], "each has its quarter"
    async with operator(gateways):
        await until(lambda: all(counting.is_shared for counting, _ in four))
        assert await all_tried(four, limited, 100) == [0, 0, 0, 0]


async def test_a_gateway_that_is_killed_and_comes_back_opens_no_limit(four):
    limited = key(requests_per_minute=40)
    gateways = Here([address for _, address in four])
    async with operator(gateways), gateway() as (anew, address):
        await until(lambda: all(counting.is_shared for counting, _ in four))
        assert await tried(four[0][0], limited, 40) == 40
        gateways.addresses = [*gateways.addresses[1:], address]
        await until(lambda: anew.is_shared)
        assert await tried(anew, limited, 40) == 0


async def test_gateways_that_cannot_be_found_or_refuse_are_tried_again(four, caplog):
    gateways = Here(["127.0.0.1:1", four[0][1]])
    gateways.is_lost = True
    sleeps = []

    async def sleep(seconds):
        sleeps.append(seconds)
        gateways.is_lost = False
        await asyncio.sleep(0.001)

    streams = LimitStreams(gateways, LimitCounter(clock=time.monotonic, wall=time.time), sleep=sleep)
    running = asyncio.create_task(streams.run())
    await until(lambda: four[0][0].is_shared and len(sleeps) > 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("limits are not shared") == 1, "what stays as it is is told once"


async def test_a_mistake_of_ours_costs_a_stream_a_moment(four, caplog):
    class Broken(Here):
        """Fails once."""

        times = 0

        async def share_limits(self, address, answer, num_gateways):
            self.times += 1
            if self.times == 1:
                raise ValueError("a mistake")
            await super().share_limits(address, answer, num_gateways)

    async with operator(Broken([four[0][1]])):
        await until(lambda: four[0][0].is_shared)
    assert "a mistake" in caplog.text
