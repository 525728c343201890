"""Which calls to a worker a gateway has carried over the stream, and which go by themselves."""

from __future__ import annotations

from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.names import Role
from dormouse_api.testing_tickets import POD_UID, book
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.requests import GENERATE, METHODS
from dormouse_gateway.model import EndpointId
from dormouse_gateway.workers.channels import Channels
from tests.relay.conftest import read_all
from tests.waiting import until


@asynccontextmanager
async def running_channels():
    channels = Channels(tickets=book(Role.GATEWAY))
    try:
        yield channels
    finally:
        await channels.aclose()


def call_over(channels, endpoint, *, method=GENERATE, text="hello"):
    body = pb.GenerateRequest(text=text).SerializeToString()
    return channels.call(endpoint, method, body, timeout_s=30.0, metadata=())


async def test_calls_are_carried_from_the_first_one_on_if_the_worker_was_asked_before(line):
    endpoint = EndpointId(POD_UID, f"127.0.0.1:{line.port}")
    async with running_channels() as channels:
        channels.carry_soon(endpoint)
        assert repr(channels) == "Channels()", "whoever has no channel gets none by this"
        channels.get(endpoint)
        channels.carry_soon(endpoint)
        await until(lambda: channels._ways[endpoint].relay.is_open)
        assert len(await read_all(call_over(channels, endpoint))) == 3


@pytest.mark.parametrize(("method", "text"), [(METHODS[1], "short"), (GENERATE, "x" * (65 << 10))])
async def test_other_methods_and_large_requests_go_by_themselves(line, method, text):
    endpoint = EndpointId(POD_UID, f"127.0.0.1:{line.port}")
    async with running_channels() as channels:
        channels.get(endpoint)
        channels.carry_soon(endpoint)
        await until(lambda: channels._ways[endpoint].relay.is_open)
        with pytest.raises(aio.AioRpcError) as caught:  # this server has nothing but the relay
            await call_over(channels, endpoint, method=method, text=text).read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_finds_the_stream_closed_goes_by_itself_and_opens_it_for_the_next(line):
    endpoint = EndpointId(POD_UID, f"127.0.0.1:{line.port}")
    async with running_channels() as channels:
        with pytest.raises(aio.AioRpcError):
            await call_over(channels, endpoint).read()
        await until(lambda: channels._ways[endpoint].relay.is_open)
        assert len(await read_all(call_over(channels, endpoint))) == 3
