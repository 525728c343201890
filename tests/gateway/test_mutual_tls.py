"""The gateway among certificates: it proves itself, knows workers and operator, and takes renewed files."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.limits import server_options
from dormouse_api.mutual_tls import MutualTls
from dormouse_api.names import Role
from dormouse_api.peers import RequirePeer
from dormouse_api.testing_tickets import GATEWAY_SEED, STRANGE_SEED, book_to_gateways, knows
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_gateway.model import EndpointId
from dormouse_gateway.settings import Settings, read_mutual_tls
from dormouse_gateway.testing.workers import FakeWorker
from dormouse_gateway.variables import BadSetting
from dormouse_gateway.workers.channels import Channels
from dormouse_operator.errors import GatewayLost
from dormouse_operator.observe.gateways import GrpcGateways
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority, tls_of, write_bundle
from tests.gateway.kit import ask, refusal_of, tokens_of
from tests.waiting import until

AUTHORITY = an_authority()
HERE = EndpointId("a", "127.0.0.1:1")


class GuardedWorker(FakeWorker):
    """A worker that lets in only whom a certificate allows."""

    def __init__(self, tls, **fields):
        super().__init__(**fields)
        self.tls = tls

    async def start(self):
        guard = RequirePeer(self.tls.identity, knows())
        self._server = aio.server(interceptors=[guard], options=server_options())
        rpc.add_InferenceServicer_to_server(self, self._server)
        self.port = self._server.add_secure_port("127.0.0.1:0", self.tls.server_credentials())
        await self._server.start()


@asynccontextmanager
async def running(worker):
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


@pytest.fixture
async def worker():
    async with running(GuardedWorker(tls_of(AUTHORITY, Role.WORKER), name="w0")) as made:
        yield made


@pytest.fixture
def mounted(tmp_path):
    """Where the gateway's certificate lies."""
    return write_bundle(tmp_path, a_bundle(AUTHORITY, Role.GATEWAY))


async def test_it_proves_itself_to_workers_and_reads_their_load(make_house, worker, mounted):
    async with make_house(mutual_tls_dir=mounted) as house:
        await house.add("tiny", [worker])
        assert await tokens_of(ask(house)) == [*worker.tokens]
        await until(lambda: worker.watchers == 1)


async def test_a_worker_of_another_authority_gets_no_request(make_house, mounted):
    stranger = GuardedWorker(tls_of(an_authority(), Role.WORKER), name="w0")
    async with running(stranger), make_house(mutual_tls_dir=mounted) as house:
        await house.add("tiny", [stranger], hears=False)
        await refusal_of(ask(house, timeout=2))  # it waits for another worker until its deadline
        assert not stranger.seen


async def test_a_gateway_without_certificate_gets_nowhere(make_house, worker):
    async with make_house() as house:
        await house.add("tiny", [worker], hears=False)
        await refusal_of(ask(house, timeout=2))
        assert not worker.seen


async def test_a_stream_goes_on_while_its_certificate_changes_and_new_requests_show_the_new_one(
    make_house, worker, mounted
):
    worker.is_gated = True
    async with make_house(mutual_tls_dir=mounted, reload_interval_s=0.1) as house:
        await house.add("tiny", [worker])
        stream = asyncio.create_task(tokens_of(ask(house)))
        await worker.started.wait()
        before = house.gateway.channels.get(next(iter(house.gateway.channels._ways)))
        write_bundle(mounted, a_bundle(AUTHORITY, Role.GATEWAY))
        await until(lambda: not house.gateway.channels._ways)
        worker.gate.set()
        assert await stream == [*worker.tokens]
        assert await tokens_of(ask(house)) == [*worker.tokens]
        assert house.gateway.channels.get(next(iter(house.gateway.channels._ways))) is not before


async def test_the_load_is_read_on_when_the_former_connection_is_closed(make_house, worker, mounted):
    async with make_house(mutual_tls_dir=mounted) as house:
        await house.add("tiny", [worker])
        await until(lambda: worker.watchers == 1)
        channels = house.gateway.channels
        channels.renew()
        ((_, retired),) = channels._retired.values()
        channels._close_retired(retired)
        await until(lambda: worker.watchers == 0)
        await until(lambda: worker.watchers == 1)


async def test_an_expired_certificate_of_its_own_is_named_to_the_client(make_house, worker, mounted):
    async with make_house(mutual_tls_dir=mounted) as house:
        await house.add("tiny", [worker])
        await tokens_of(ask(house))
        house.gateway._mutual_tls.replace(a_bundle(AUTHORITY, Role.GATEWAY, lifetime=-DAY))
        house.gateway.channels.renew()
        error = await refusal_of(ask(house))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "the certificate of dormouse://gateway/team/tiny expired" in error.details()
        assert house.gateway.metrics.value("dormouse_certificate_expiry_seconds") < 0


async def hear(house, tls, seed=GATEWAY_SEED):
    return await anext(GrpcGateways("x:1", book_to_gateways(seed), tls=tls).watch(f"127.0.0.1:{house.ports.control}"))


async def test_the_operator_alone_hears_of_its_activity(make_house, mounted):
    async with make_house(mutual_tls_dir=mounted) as house:
        assert (await hear(house, tls_of(AUTHORITY, Role.OPERATOR))).is_complete
        for role in (Role.CLIENT, Role.GATEWAY, Role.WORKER):
            with pytest.raises(GatewayLost, match=f"PERMISSION_DENIED: .*dormouse://{role}/team/tiny"):
                await hear(house, tls_of(AUTHORITY, role))
        with pytest.raises(GatewayLost, match="needs the role operator"):
            await hear(house, tls_of(AUTHORITY, Role.OPERATOR), STRANGE_SEED)
        with pytest.raises(GatewayLost, match="it does not accept connections"):
            await hear(house, None)
        with pytest.raises(GatewayLost, match="its certificate is of another authority"):
            await hear(house, tls_of(an_authority(), Role.OPERATOR))
        with pytest.raises(GatewayLost, match="there is no certificate yet"):
            await hear(house, MutualTls())


async def test_retired_connections_end_with_their_worker_and_with_the_gateway():
    channels = Channels(tls_of(AUTHORITY, Role.GATEWAY))
    first = channels.get(HERE)
    channels.renew()
    second = channels.get(HERE)
    assert first is not second
    channels.discard(HERE)
    channels.get(HERE)
    channels.renew()
    await channels.aclose()
    assert {first.get_state(), second.get_state()} == {grpc.ChannelConnectivity.SHUTDOWN}
    assert not channels._retired


def test_files_of_no_use_stop_the_program_and_name_the_variable(tmp_path):
    with pytest.raises(BadSetting, match=r"DORMOUSE_MUTUAL_TLS_DIR: .* holds no usable tls\.crt"):
        read_mutual_tls(Settings(mutual_tls_dir=tmp_path))
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.GATEWAY, lifetime=-DAY))
    with pytest.raises(BadSetting, match="certificate has expired"):
        read_mutual_tls(Settings.from_env({"DORMOUSE_MUTUAL_TLS_DIR": str(tmp_path)}))
