"""Connections are kept as long as their endpoints, and no longer."""

import grpc

from dormouse_gateway.model import EndpointId
from dormouse_gateway.workers.channels import Channels

HERE = EndpointId("a", "127.0.0.1:1")
THERE = EndpointId("b", "127.0.0.1:2")


async def test_an_endpoint_has_one_channel_until_it_is_discarded():
    channels = Channels()
    channel = channels.get(HERE)
    assert channels.get(HERE) is channel
    assert channels.get(THERE) is not channel
    assert repr(channels) == "Channels(127.0.0.1:1, 127.0.0.1:2)"
    channels.discard(HERE)
    channels.discard(HERE)
    assert repr(channels) == "Channels(127.0.0.1:2)"
    await channels.aclose()
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_closing_closes_every_channel():
    channels = Channels()
    opened = [channels.get(HERE), channels.get(THERE)]
    await channels.aclose()
    assert [channel.get_state() for channel in opened] == [grpc.ChannelConnectivity.SHUTDOWN] * 2
    assert repr(channels) == "Channels()"


async def test_closing_without_any_channel_is_nothing():
    await Channels().aclose()
