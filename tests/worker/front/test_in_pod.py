"""The socket of a worker's pod: whom it lets in, and what he may say."""

import pytest
from grpc import aio

from dormouse_api.listening import listen
from dormouse_api.names import METADATA_CACHE_SALT, Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.beside import Flags, LetIn, make_door
from dormouse_gateway.workers.relay import Relay
from tests.waiting import until

SALT = ((METADATA_CACHE_SALT, "salt"),)
BODY = pb.GenerateRequest(
    token_ids=pb.TokenIds(ids=[1, 2, 3]), sampling_params=pb.SamplingParams(max_tokens=3)
).SerializeToString()


@pytest.fixture
async def house(open_house, tmp_path):
    async with open_house(local_socket=str(tmp_path / "inference.sock")) as house:
        yield house


@pytest.fixture
async def channel(house):
    async with aio.insecure_channel(f"unix:{house.front.worker.settings.local_socket}") as channel:
        yield channel


@pytest.fixture
async def relay(channel):
    """A stream of calls of who proves nothing."""
    relay = Relay(channel, tuple)
    relay.open_soon()
    yield relay
    await relay.aclose()


async def tokens(call):
    found = []
    while (message := await call.read()) is not aio.EOF:
        found += pb.GenerateResponse.FromString(message).token_ids
    return found


async def test_calls_are_carried_there_without_a_proof_and_each_proves_itself_whose_it_is(relay):
    await until(lambda: relay.is_open)
    assert await tokens(relay.call(BODY, timeout_s=90, metadata=())) == [1, 2, 3]
    assert await tokens(relay.call(BODY, timeout_s=90, metadata=(*SALT, *proof(Role.GATEWAY)))) == [1, 2, 3]
    with pytest.raises(aio.AioRpcError, match="only by the gateway"):
        await relay.call(BODY, timeout_s=90, metadata=SALT).read()


async def test_at_the_port_they_are_not(house):
    relay = Relay(house.serving, tuple)
    relay.open_soon()
    await until(relay._running.done)
    assert not relay.is_open


async def test_a_carried_call_comes_late_as_any_other_there(house, relay):
    await until(lambda: relay.is_open)
    house.front.worker.late_door.open_s = 3600.0
    draining = await house.drained_by(house.operate("Drain", timeout_seconds=60))
    assert await tokens(relay.call(BODY, timeout_s=90, metadata=())) == [1, 2, 3]
    house.front.worker.late_door._expire()
    await draining
    with pytest.raises(aio.AioRpcError, match="draining"):
        await relay.call(BODY, timeout_s=90, metadata=()).read()


async def test_the_pods_http_api_has_its_calls_carried(house):
    address = (house.front.worker.settings.local_socket, 0)
    door, listener = make_door(Flags(("tiny",), 0, address, LetIn(fails_open=True))), listen("127.0.0.1", 0)
    await door.start(listener)
    await until(lambda: any(way.relay and way.relay.is_open for way in door._channels._ways.values()))
    await door.stop()
