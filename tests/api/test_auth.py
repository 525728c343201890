"""Roles: who proves what, and the guard that stands on every port."""

# ruff: noqa: ARG002, N802  the methods are those of the .proto file
from __future__ import annotations

from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.auth import RequireRole
from dormouse_api.limits import channel_options, server_options
from dormouse_api.names import CONTROL_SERVICE, Role
from dormouse_api.testing_tickets import STRANGE_SEED, knows, proof
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc

PROOFS = knows(Role.OPERATOR, Role.GATEWAY)


class Control(rpc.WorkerControlServicer):
    """Answers everything."""

    async def GetStatus(self, request, context):
        return pb.WorkerStatus(version="1")

    async def WatchStatus(self, request, context):
        yield pb.WorkerStatus(version="1")


@asynccontextmanager
async def guarded():
    """A guarded server and a stub to it."""
    guard = RequireRole(PROOFS, {CONTROL_SERVICE: Role.OPERATOR})
    server = aio.server(interceptors=[guard], options=server_options())
    rpc.add_WorkerControlServicer_to_server(Control(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
        yield rpc.WorkerControlStub(channel)
    await server.stop(None)


@pytest.mark.parametrize(
    ("make_metadata", "why"),
    [
        (tuple, "this caller has the role client"),
        (lambda: proof(Role.GATEWAY), "this caller has the role gateway"),
        (
            lambda: proof(Role.OPERATOR, seed=STRANGE_SEED),
            "not signed with a key of the role operator that this server was",
        ),
        (lambda: proof(Role.OPERATOR, "another-pod"), "made out to 'another-pod', which this server is not"),
    ],
)
async def test_other_roles_are_refused_for_calls_and_streams_naming_both_and_why(make_metadata, why):
    metadata = make_metadata()
    async with guarded() as stub:
        for call in (
            stub.GetStatus(pb.GetStatusRequest(), metadata=metadata),
            stub.WatchStatus(pb.GetStatusRequest(), metadata=metadata).read(),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "needs the role operator" in caught.value.details()
            assert why in caught.value.details()


async def test_the_needed_role_passes_calls_and_streams():
    async with guarded() as stub:
        metadata = proof(Role.OPERATOR)
        assert (await stub.GetStatus(pb.GetStatusRequest(), metadata=metadata)).version == "1"
        assert [s.version async for s in stub.WatchStatus(pb.GetStatusRequest(), metadata=metadata)] == ["1"]


async def test_a_second_server_on_the_same_port_is_an_error():
    first = aio.server(options=server_options())
    port = first.add_insecure_port("127.0.0.1:0")
    with pytest.raises(RuntimeError):
        aio.server(options=server_options()).add_insecure_port(f"127.0.0.1:{port}")
    await first.stop(None)
