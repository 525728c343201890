"""Errors on the wire: code, sentence, and when to come again."""

# ruff: noqa: ARG002, N802  the methods are those of the .proto file
from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.status import CallError, read_details, retry_after_s, to_grpc_status
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc


class Refusing(rpc.WorkerControlServicer):
    """Ends every call with one error."""

    def __init__(self, error):
        self.error = error

    async def GetStatus(self, request, context):
        await context.abort_with_status(to_grpc_status(self.error))


@asynccontextmanager
async def refusing(error):
    server = aio.server()
    rpc.add_WorkerControlServicer_to_server(Refusing(error), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield rpc.WorkerControlStub(channel)
    await server.stop(None)


@pytest.mark.parametrize("seconds", [None, 0.0, 0.25, 5.0])
async def test_code_sentence_and_delay_survive_the_wire(seconds):
    async with refusing(CallError(grpc.StatusCode.UNAVAILABLE, "asleep – wake it", seconds)) as stub:
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.GetStatus(pb.GetStatusRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "asleep – wake it"
    assert retry_after_s(caught.value) == seconds


@pytest.mark.parametrize("seconds", [None, 2.5])
def test_a_reason_survives_the_wire_and_foreign_ones_count_for_nothing(seconds):
    said = CallError(grpc.StatusCode.INVALID_ARGUMENT, "too long", seconds, "context_length_exceeded")
    status = to_grpc_status(said)
    ((_, raw),) = status.trailing_metadata
    assert read_details(status.code, status.details, raw) == said
    foreign = raw.replace(b"inference.dormouse.dev", b"inference.dormouse.org")
    assert read_details(status.code, status.details, foreign).reason == ""


def test_the_error_reads_as_its_sentence():
    assert str(CallError(grpc.StatusCode.NOT_FOUND, "no such model")) == "no such model"


def test_the_error_passes_a_context_manager_unchanged():
    @contextlib.contextmanager
    def manager():
        yield

    with pytest.raises(CallError), manager():
        raise CallError(grpc.StatusCode.NOT_FOUND, "no such model")
