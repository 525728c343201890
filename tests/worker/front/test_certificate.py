"""A worker with certificates: whom it serves, what it says of itself, and what ends it at start."""

import dataclasses

import grpc
import pytest
from grpc import aio

from dormouse_api.mutual_tls import TlsError, open_channel
from dormouse_api.names import Role
from dormouse_api.testing_tickets import GATEWAY_SEED, OPERATOR_SEED, POD_UID, STRANGE_SEED, book, proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_operator.act.workers import GrpcWorkerControl
from dormouse_operator.errors import WorkerRefused, WorkerUnreachable
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority, tls_of, write_bundle
from dormouse_operator.testing.nouns import a_pod
from dormouse_worker.front.flags.settings import parse_settings

AUTHORITY = an_authority()


@pytest.fixture
async def house(open_house, tmp_path):
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER))
    async with open_house(ready=False, mutual_tls_dir=str(tmp_path)) as made:
        yield made


POD = a_pod(uid=POD_UID, ip="127.0.0.1")


def control_of(house, tls, seed=OPERATOR_SEED):
    return GrpcWorkerControl(book(Role.OPERATOR, seed), port=house.ports.control, tls=tls)


async def make_ready(house):
    control = control_of(house, tls_of(AUTHORITY, Role.OPERATOR))
    while (await control.get_status(POD)).report is None:
        pass
    return await control.initialize_cache(POD, epoch=1, num_gpu_blocks=40, num_cpu_blocks=0)


async def generate(house, role, seed="", resumed=()):
    """Return the tokens of a request that a caller of this role makes."""
    target = f"127.0.0.1:{house.ports.inference}"
    params = pb.SamplingParams(max_tokens=3, seed=1)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2, 3]), sampling_params=params)
    if resumed:
        request.resume.output_token_ids.extend(resumed)
    async with open_channel(target, tls_of(AUTHORITY, role), Role.WORKER, ()) as channel:
        metadata = proof(Role.GATEWAY, seed=seed) if seed else ()
        call = rpc.InferenceStub(channel).Generate(request, timeout=90, metadata=metadata)
        return [token async for message in call for token in message.token_ids]


async def test_the_operator_makes_it_ready_and_gateways_and_clients_are_served(house):
    assert (await make_ready(house)).state is WorkerState.READY
    assert len(await generate(house, Role.GATEWAY, GATEWAY_SEED)) == 3
    assert await generate(house, Role.CLIENT)
    assert await generate(house, Role.GATEWAY, GATEWAY_SEED, resumed=[5])


@pytest.mark.parametrize("role", [Role.CLIENT, Role.GATEWAY, Role.WORKER])
async def test_nobody_but_the_operator_commands_it_even_with_the_operators_ticket(house, role):
    with pytest.raises(WorkerRefused, match=f"role operator was shown by dormouse://{role}/team/tiny"):
        await control_of(house, tls_of(AUTHORITY, role)).get_status(POD)


async def test_the_operator_without_its_ticket_does_not_command_it(house):
    with pytest.raises(WorkerRefused, match="needs the role operator"):
        await control_of(house, tls_of(AUTHORITY, Role.OPERATOR), STRANGE_SEED).get_status(POD)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.CLIENT, Role.WORKER])
async def test_nobody_but_a_gateway_claims_tokens_as_output_even_with_the_gateways_ticket(house, role):
    await make_ready(house)
    with pytest.raises(aio.AioRpcError) as caught:
        await generate(house, role, GATEWAY_SEED, resumed=[5])
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_operator_and_worker_are_told_apart_by_their_words(house):
    plain = control_of(house, None)
    with pytest.raises(WorkerUnreachable, match="it does not accept connections"):
        await plain.get_status(POD)
    with pytest.raises(WorkerUnreachable, match="its certificate is of another authority"):
        await control_of(house, tls_of(an_authority(), Role.OPERATOR)).get_status(POD)


async def test_its_metrics_say_for_how_long_its_certificate_lasts_and_readiness_is_told_over_http(house):
    _, text = await house.http("/metrics")
    value = next(line for line in text.splitlines() if line.startswith("dormouse_certificate_expiry_seconds"))
    assert 86_000 < float(value.split()[1]) <= 86_400
    assert (await house.http("/readyz"))[0] == 503
    await make_ready(house)
    assert (await house.http("/readyz"))[0] == 200


async def test_a_plain_worker_tells_of_no_certificate(open_house):
    async with open_house() as house:
        assert "certificate" not in (await house.http("/metrics"))[1]


async def test_an_expired_certificate_ends_it_at_start_with_the_reason(open_house, tmp_path):
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER, lifetime=-DAY))
    with pytest.raises(TlsError, match="cannot be used: certificate has expired"):
        async with open_house(ready=False, mutual_tls_dir=str(tmp_path)):
            pass


def test_the_directory_is_a_setting_of_the_environment():
    front, _ = parse_settings(["--model", "/m"], {"DORMOUSE_MUTUAL_TLS_DIR": "/certificates"})
    assert front.mutual_tls_dir == "/certificates"
    assert parse_settings(["--model", "/m"], {})[0] == dataclasses.replace(front, mutual_tls_dir="")
