"""Roles: who proves what, and the guard that stands on every port."""

# ruff: noqa: ARG002, N802  the methods are those of the .proto file
from __future__ import annotations

import hmac
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.auth import RequireRole, RoleTokens, role_metadata, token_digest
from dormouse_api.limits import channel_options, server_options
from dormouse_api.names import CONTROL_SERVICE, METADATA_ROLE_TOKEN, Role
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc

TOKENS = RoleTokens({Role.OPERATOR: token_digest("op"), Role.GATEWAY: token_digest("gw").upper()})


class Control(rpc.WorkerControlServicer):
    """Answers everything."""

    async def GetStatus(self, request, context):
        return pb.WorkerStatus(version="1")

    async def WatchStatus(self, request, context):
        yield pb.WorkerStatus(version="1")


@asynccontextmanager
async def guarded():
    """A guarded server and a stub to it."""
    guard = RequireRole(TOKENS, {CONTROL_SERVICE: Role.OPERATOR})
    server = aio.server(interceptors=[guard], options=server_options())
    rpc.add_WorkerControlServicer_to_server(Control(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
        yield rpc.WorkerControlStub(channel)
    await server.stop(None)


@pytest.mark.parametrize(
    ("metadata", "role"),
    [
        ((), Role.CLIENT),
        (None, Role.CLIENT),
        (role_metadata("op"), Role.OPERATOR),
        (role_metadata("gw"), Role.GATEWAY),
        (role_metadata("other"), Role.CLIENT),
        ((*role_metadata("op"), *role_metadata("gw")), Role.CLIENT),
        (((METADATA_ROLE_TOKEN, b"op"),), Role.OPERATOR),
        ((("other-key", "op"),), Role.CLIENT),
    ],
)
def test_a_role_is_proved_by_exactly_one_token(metadata, role):
    assert TOKENS.role_of(metadata) is role


def test_a_role_without_digest_can_not_be_proved():
    assert RoleTokens({Role.OPERATOR: ""}).role_of(role_metadata("")) is Role.CLIENT


def test_a_digest_itself_proves_nothing():
    assert TOKENS.role_of(role_metadata(token_digest("op"))) is Role.CLIENT


def test_every_digest_is_compared_whatever_matches(monkeypatch):
    compared = []

    def counting(given, digest):
        compared.append(digest)
        return given == digest

    monkeypatch.setattr(hmac, "compare_digest", counting)  # the standard library's, to count
    TOKENS.role_of(role_metadata("op"))
    assert len(compared) == 2


def test_tokens_and_digests_are_never_shown():
    assert repr(TOKENS) == "RoleTokens(gateway, operator)"


@pytest.mark.parametrize("metadata", [(), role_metadata("gw"), role_metadata("guess")])
async def test_other_roles_are_refused_for_calls_and_streams_naming_both(metadata):
    async with guarded() as stub:
        for call in (
            stub.GetStatus(pb.GetStatusRequest(), metadata=metadata),
            stub.WatchStatus(pb.GetStatusRequest(), metadata=metadata).read(),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "operator" in caught.value.details()


async def test_the_needed_role_passes_calls_and_streams():
    async with guarded() as stub:
        metadata = role_metadata("op")
        assert (await stub.GetStatus(pb.GetStatusRequest(), metadata=metadata)).version == "1"
        assert [s.version async for s in stub.WatchStatus(pb.GetStatusRequest(), metadata=metadata)] == ["1"]


async def test_a_second_server_on_the_same_port_is_an_error():
    first = aio.server(options=server_options())
    port = first.add_insecure_port("127.0.0.1:0")
    with pytest.raises(RuntimeError):
        aio.server(options=server_options()).add_insecure_port(f"127.0.0.1:{port}")
    await first.stop(None)
