"""A pod that follows proves itself like one that leads, and lets in the same callers."""

from __future__ import annotations

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dormouse_api.mutual_tls import TlsError, open_channel
from dormouse_api.names import Role
from dormouse_api.testing_tickets import OPERATOR_SEED, STRANGE_SEED, proof, public_key
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority, tls_of, write_bundle
from dormouse_worker.front.follower.follower import FollowerFront
from dormouse_worker.front.follower.rank_supervisor import RankKeeper
from dormouse_worker.front.testing import front_settings

AUTHORITY = an_authority()


async def spawn_nothing(rank):
    raise AssertionError(f"rank {rank} is not started here")


def make_front(directory):
    keeper = RankKeeper(range(1, 2), spawn_nothing, patience_s=20.0)
    settings = front_settings(mutual_tls_dir=directory, operator_key=public_key(Role.OPERATOR))
    return FollowerFront(settings, keeper, "pod-1")


@pytest.fixture
async def ports(tmp_path):
    """The ports of a follower with a certificate: health, control, http."""
    front = make_front(str(write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER))))
    yield await front.start()
    await front.close()


async def state_told_to(port, tls, seed=OPERATOR_SEED):
    async with open_channel(f"127.0.0.1:{port}", tls, Role.WORKER, ()) as channel:
        call = rpc.WorkerControlStub(channel).GetStatus(
            pb.GetStatusRequest(), timeout=90, metadata=proof(Role.OPERATOR, seed=seed)
        )
        return (await call).state


async def refusal_of(call):
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_the_operator_learns_its_state_with_certificate_and_ticket(ports):
    _, control, _ = ports
    assert await state_told_to(control, tls_of(AUTHORITY, Role.OPERATOR)) == pb.WORKER_STATE_STARTING
    guessed = state_told_to(control, tls_of(AUTHORITY, Role.OPERATOR), STRANGE_SEED)
    assert await refusal_of(guessed) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.CLIENT, Role.WORKER])
async def test_nobody_else_does_even_with_the_operators_ticket(ports, role):
    assert await refusal_of(state_told_to(ports[1], tls_of(AUTHORITY, role))) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("tls", [None, tls_of(an_authority(), Role.OPERATOR)], ids=["none", "a stranger's"])
async def test_without_a_certificate_of_the_authority_nobody_gets_to_either_port(ports, tls):
    health, control, _ = ports
    assert await refusal_of(state_told_to(control, tls)) is grpc.StatusCode.UNAVAILABLE
    async with open_channel(f"127.0.0.1:{health}", tls, Role.WORKER, ()) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=90)
        assert await refusal_of(check) is grpc.StatusCode.UNAVAILABLE


async def test_its_metrics_say_for_how_long_its_certificate_lasts(tmp_path):
    front = make_front(str(write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER))))
    text = front._metrics().body.decode()
    value = next(line for line in text.splitlines() if line.startswith("dormouse_certificate_expiry_seconds"))
    assert 86_000 < float(value.split()[1]) <= 86_400
    await front.close()


async def test_an_expired_certificate_ends_it_at_start_with_the_reason(tmp_path):
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER, lifetime=-DAY))
    with pytest.raises(TlsError, match="cannot be used: certificate has expired"):
        make_front(str(tmp_path))
