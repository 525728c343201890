"""Tests for a call's first send, on a real server: a status comes though the send was cancelled in the middle."""

import asyncio
from contextlib import suppress

import grpc
import pytest
from grpc import aio

from dormouse_gateway.first_send import FirstSend

METHOD = "/tests.v1.Sends/Send"


class Server(grpc.GenericRpcHandler):
    """Sends first what the test says, cancels that in the middle, and ends the call with a status.

    It reads all that the client says before: a client that still writes finds an error of its own in place of a status.
    """

    def __init__(self, send):
        self._send = send

    def service(self, handler_call_details):  # noqa: ARG002  # gRPC's signature
        """See `grpc.GenericRpcHandler`."""
        return grpc.stream_stream_rpc_method_handler(self._serve)

    async def _serve(self, messages, context):
        assert [message async for message in messages] == [b"asked"]
        client = FirstSend(context)
        sending = asyncio.create_task(self._send(client))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
        await client.settled()
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "revoked")


@pytest.mark.parametrize(
    "send",
    [lambda client: client.send_initial_metadata((("held", "true"),)), lambda client: client.write(b"one")],
    ids=["initial metadata", "a message"],
)
async def test_a_status_follows_a_first_send_that_was_cancelled(send):
    server = aio.server()
    server.add_generic_rpc_handlers((Server(send),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(METHOD)(iter([b"asked"]), timeout=90)
            with suppress(aio.AioRpcError):
                _ = [message async for message in call]
            code, details = await call.code(), await call.details()
            assert (code, details) == (grpc.StatusCode.UNAUTHENTICATED, "revoked")
    finally:
        await server.stop(None)


class Told:
    """A context that notes what is sent."""

    def __init__(self):
        self.sent = []

    async def write(self, message):
        """Note it."""
        self.sent.append(message)


async def test_later_messages_are_written_in_order_and_nothing_is_left_to_wait_for():
    context = Told()
    client = FirstSend(context)
    for message in (b"one", b"two", b"three"):
        await client.write(message)
    await client.settled()
    assert context.sent == [b"one", b"two", b"three"]
