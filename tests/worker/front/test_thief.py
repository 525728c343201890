"""A tenant's pod that is labelled like a worker is called, and learns nothing that is of use at another's worker."""

# ruff: noqa: ARG002, N802  the methods are those of the .proto file
from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.names import Role
from dormouse_api.testing_tickets import ADDRESSES, GATEWAY_SEED, POD_UID, book, book_to_gateways, proof, public_key
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import worker_control_pb2 as control_pb
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_gateway.clients.requests import GENERATE
from dormouse_gateway.model import EndpointId
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.workers.channels import Channels
from dormouse_gateway.workers.relay import Relay
from dormouse_operator.act.workers import GrpcWorkerControl
from dormouse_operator.testing.nouns import a_pod

THIEF = "uid-of-the-thief"
COMMANDS = {
    "GetStatus": control_pb.GetStatusRequest(),
    "Shutdown": control_pb.ShutdownRequest(epoch=1),
    "SwapEngine": control_pb.SwapEngineRequest(epoch=1),
    "Sleep": control_pb.SleepRequest(epoch=1, level=2),
}


class Thief(control_rpc.WorkerControlServicer, rpc.InferenceServicer):
    """Answers like a worker and keeps what it is shown."""

    def __init__(self):
        self.loot = []

    async def GetStatus(self, request, context):
        self.loot += context.invocation_metadata()
        return control_pb.WorkerStatus(state=control_pb.WORKER_STATE_READY, pod_uid=THIEF)

    async def Generate(self, request, context):
        self.loot += context.invocation_metadata()
        yield pb.GenerateResponse(token_ids=[1])

    @property
    def tickets(self):
        return tuple((key, value) for key, value in self.loot if key.startswith("dormouse-"))


@asynccontextmanager
async def open_thief():
    thief, server = Thief(), aio.server()
    control_rpc.add_WorkerControlServicer_to_server(thief, server)
    rpc.add_InferenceServicer_to_server(thief, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield thief, port
    finally:
        await server.stop(None)


@pytest.fixture
async def shown_by_the_operator():
    """What the operator shows a pod that it takes for a worker of a deployment."""
    async with open_thief() as (thief, port):
        await GrpcWorkerControl(book(Role.OPERATOR), port=port).get_status(a_pod(uid=THIEF, ip="127.0.0.1"))
        return thief.tickets


@pytest.fixture
async def shown_by_a_gateway():
    """What a gateway shows it, together with a client's request."""
    channels = Channels(tickets=Seeds((GATEWAY_SEED,)).tickets())
    async with open_thief() as (thief, port):
        endpoint = EndpointId(THIEF, f"127.0.0.1:{port}")
        call = channels.call(endpoint, GENERATE, b"", timeout_s=90, metadata=())
        await call.read()
        await channels.aclose()
        return thief.tickets


@pytest.mark.parametrize("method", COMMANDS)
async def test_the_operators_ticket_to_a_thief_commands_no_other_worker(house, shown_by_the_operator, method):
    assert shown_by_the_operator, "it was shown something"
    call = getattr(control_rpc.WorkerControlStub(house.control), method)
    refused = await house.refusal(call(COMMANDS[method], metadata=shown_by_the_operator, timeout=90))
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    assert f"made out to {THIEF!r}" in refused.details()
    assert not house.front.worker.is_ending


async def test_a_gateways_ticket_to_a_thief_claims_no_tokens_and_opens_no_relay_elsewhere(house, shown_by_a_gateway):
    assert shown_by_a_gateway, "it was shown something"
    resumed = house.generate("hi", metadata=shown_by_a_gateway, resume=pb.Resume(output_token_ids=[2]))
    refused = await house.refusal(resumed.read())
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "resume" in refused.details()
    salted = (*shown_by_a_gateway, ("dormouse-cache-salt", "of somebody else"))
    refused = await house.refusal(house.generate("hi", metadata=salted).read())
    assert "not taken" in refused.details()

    relay = Relay(house.serving, lambda: shown_by_a_gateway)
    relay.open_soon()
    await asyncio.wait([relay._running])
    assert not relay.is_open


async def test_what_it_was_shown_opens_no_gateway(shown_by_the_operator, shown_by_a_gateway):
    proofs = Seeds((GATEWAY_SEED,)).proofs(ADDRESSES)
    assert proofs.role_of(shown_by_the_operator) is proofs.role_of(shown_by_a_gateway) is Role.CLIENT


async def test_what_stands_in_its_pod_signs_nothing(house):
    """The public keys are the only thing about the roles that a tenant's pod holds."""
    for key in (public_key(Role.OPERATOR), public_key(Role.GATEWAY)):
        for metadata in (proof(Role.OPERATOR, POD_UID, key), book_to_gateways(key).proof(POD_UID)):
            stub = control_rpc.WorkerControlStub(house.control)
            refused = await house.refusal(stub.Shutdown(control_pb.ShutdownRequest(), metadata=metadata, timeout=90))
            assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
