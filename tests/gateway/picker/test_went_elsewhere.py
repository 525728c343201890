"""A gateway that sends a request to another pod than the picker chose: what its client hears, and what is learnt."""

from contextlib import AsyncExitStack

import pytest

from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_gateway.routing.breaker import State
from tests.gateway.picker.conftest import CHAT, HI, KEY
from tests.gateway.picker.test_protocol import MODE, answered, answered_body, body, head, http_headers
from tests.waiting import until


def served(message, address):
    """Return the message with what the protocol has a gateway say of who served."""
    message.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = address
    return message


def refused():
    return pb.ProcessingRequest(response_headers=http_headers([(":status", "503")]))


async def sent(picker):
    """Return a conversation up to where the request goes, and where that is."""
    call = picker.Process(timeout=30)
    await call.write(head(mode=MODE.BUFFERED, response_mode=MODE.STREAMED))
    await call.read()
    await call.write(body())
    told = await call.read()
    return call, told.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]


def loads(town):
    """Return how many requests run at each HTTP address."""
    slots = town.router.pool._slots.values()
    return {slot.endpoint.http_address: slot.outstanding for slot in slots}


def opened(town):
    """Return the HTTP addresses of those whose breakers are not closed."""
    breakers = town.router.pool.breakers(KEY)
    return {endpoint.http_address for endpoint, state in breakers if state is not State.CLOSED}


def other_than(town, place):
    (other,) = {f"127.0.0.1:{port}" for port in town.http_ports} - {place}
    return other


async def say(call, message):
    await call.write(message)
    return await call.read()


async def test_a_response_of_another_pod_counts_there_to_its_end(town, picker):
    call, place = await sent(picker)
    other = other_than(town, place)
    assert loads(town) == {place: 1, other: 0}
    await say(call, served(answered(), other))
    assert loads(town) == {place: 0, other: 1}
    assert opened(town) == {place}, "the gateway went past it, so others should not be sent there"
    await say(call, answered_body(b"abc"))
    await until(town.is_quiet)
    assert loads(town) == {place: 0, other: 0}


async def test_that_another_pod_refuses_what_was_not_let_in_there_is_not_its_fault(town, picker):
    call, place = await sent(picker)
    await say(call, served(refused(), other_than(town, place)))
    await say(call, answered_body(b""))
    await until(town.is_quiet)
    assert opened(town) == {place}


@pytest.mark.parametrize("address", ["", "10.9.9.9:8000", "nonsense", None])
async def test_where_nothing_that_is_known_is_said_of_who_served_it_was_who_was_chosen(town, picker, address):
    call, place = await sent(picker)
    await say(call, served(answered(), place if address is None else address))
    assert loads(town)[place] == 1
    await say(call, answered_body(b"abc"))
    await until(town.is_quiet)
    assert opened(town) == set()


async def test_a_real_envoy_says_who_served_and_a_pod_has_what_was_let_in_elsewhere_come_again(town):
    """It knows one pod of two; the picker chooses the other as the only one that serves."""
    places = [f"127.0.0.1:{port}" for port in town.http_ports]
    town.workers[1].tell_load(ready=False)
    await until(lambda: town.router.pool.num_ready(KEY) == 1)
    async with (
        town.envoy(fallback=town.http_ports[1:]) as url,
        town.session.post(url + CHAT, json=HI) as response,
    ):
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert "send it again" in (await response.json())["error"]["message"]
    await until(town.is_quiet)
    assert opened(town) == {places[0]}
    assert not town.workers[1].seen


async def test_in_a_pool_that_fails_open_the_load_is_where_a_real_envoy_sent_it(make_town):
    async with AsyncExitStack() as stack:
        town = await stack.enter_async_context(make_town(fails_open=True))
        url = await stack.enter_async_context(town.envoy(fallback=town.http_ports[1:]))
        busy = town.workers[1]
        busy.is_gated = True
        posts = [town.session.post(url + CHAT, json={**HI, "stream": True}) for _ in range(2)]
        responses = [await stack.enter_async_context(post) for post in posts]
        for response in responses:
            await response.content.readuntil(b"Hello")
        await until(lambda: list(loads(town).values()) == [0, 2])
        busy.gate.set()
        assert all([b"[DONE]" in await response.content.read() for response in responses])
        await until(town.is_quiet)
