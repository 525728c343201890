"""A worker's blocks for other workers of its deployment: by name, with a ticket, within limits. Real sockets."""

from __future__ import annotations

import asyncio
import os

import grpc
import pytest
from grpc import aio

from dormouse_api.names import Role
from dormouse_api.testing_tickets import STRANGE_SEED, introduction, proof
from dormouse_api.v1 import kv_blocks_pb2 as pb
from dormouse_api.v1 import kv_blocks_pb2_grpc as rpc
from dormouse_operator.testing.certificates import a_bundle, an_authority, write_bundle
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.front.api import kv_blocks
from dormouse_worker.front.api.kv_blocks import KvBlocksService
from dormouse_worker.kv_store.block_file import HEADER_BYTES
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.grpc_peer import GrpcPeer
from dormouse_worker.kv_store.interface import Miss
from dormouse_worker.kv_store.peer import PeerFailed
from dormouse_worker.kv_store.peer_store import PeerStore
from tests.worker.kv_store.store_files import OTHER_REALM, REALM, SIZE, block, content, file_of, read

Code = grpc.StatusCode
NAMES = [bytes([number]) * 33 for number in range(5)]
LIMIT = 1 << 20
FILE_BYTES = HEADER_BYTES + SIZE


@pytest.fixture
def root(tmp_path):
    """A store with five blocks."""
    FileBlockStore(tmp_path / "there", REALM, LIMIT).write([block(name) for name in NAMES])
    return tmp_path / "there"


@pytest.fixture
async def house(open_house, root):
    async with open_house(engine={"kv_store_dir": str(root)}, ready=False) as house:
        yield house


def source_at(house, tickets=None):
    shown = introduction() if tickets is None else tickets
    return KvSource(f"127.0.0.1:{house.ports.inference}", tuple(value for _, value in shown))


def fetch(source, here, names=NAMES, mutual_tls_dir=""):
    """Return how many blocks were found, and each as it came; from a thread, as the engine does."""
    peer = GrpcPeer(source, mutual_tls_dir)
    store = PeerStore(FileBlockStore(here, REALM, LIMIT), peer, REALM)
    found = store.look(names)
    store.expect(names)
    came = [read(store, name) for name in names]
    peer.close()
    return found, came


async def test_blocks_come_as_they_were_written(house, tmp_path, monkeypatch):
    monkeypatch.setattr(kv_blocks, "PART_BYTES", 1999)
    found, came = await asyncio.to_thread(fetch, source_at(house), tmp_path / "here")
    assert (found, came) == (5, [content(name) for name in NAMES])


async def test_what_is_not_there_ends_the_stream(house, root, tmp_path):
    file_of(root, NAMES[2]).unlink()
    found, came = await asyncio.to_thread(fetch, source_at(house), tmp_path / "here")
    assert (found, came[:2]) == (4, [content(name) for name in NAMES[:2]])
    assert came[2:] == [Miss.ABSENT] * 3


@pytest.mark.parametrize("make", ["link", "pipe", "short"])
async def test_what_is_no_block_is_not_read(house, root, tmp_path, make):
    path = file_of(root, NAMES[0])
    path.unlink()
    if make == "link":
        path.symlink_to(file_of(root, NAMES[1]))
    elif make == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"short")
    found, came = await asyncio.to_thread(fetch, source_at(house), tmp_path / "here")
    assert (found, came) == (5, [Miss.ABSENT] * 5)


@pytest.mark.parametrize(
    "make_tickets",
    [
        tuple,
        lambda: proof(Role.GATEWAY),
        lambda: proof(Role.OPERATOR),
        lambda: introduction("another-pod"),
        lambda: introduction(seed=STRANGE_SEED),
    ],
)
async def test_nobody_else_is_given_any(house, tmp_path, make_tickets):
    tickets = make_tickets()
    assert await asyncio.to_thread(fetch, source_at(house, tickets), tmp_path / "here") == (
        0,
        [Miss.IO, *[Miss.ABSENT] * 4],
    )
    stub = rpc.KvBlocksStub(house.serving)
    refused = await house.refusal(stub.Find(pb.KvBlockNames(realm=REALM, names=NAMES), metadata=tickets))
    assert refused.code() is Code.PERMISSION_DENIED
    assert "needs the role worker" in refused.details()


async def test_such_a_ticket_opens_nothing_else(house):
    refused = await house.refusal(house.generate("hi", metadata=(*introduction(), ("dormouse-cache-salt", "a"))).read())
    assert (refused.code(), "dormouse-cache-salt" in refused.details()) == (Code.INVALID_ARGUMENT, True)


async def test_other_realms_are_other_blocks(house):
    found = await rpc.KvBlocksStub(house.serving).Find(
        pb.KvBlockNames(realm=OTHER_REALM, names=NAMES), metadata=introduction()
    )
    assert not any(found.found)


BAD = {
    "realm": ({"realm": b"short", "names": NAMES}, "realm"),
    "name": ({"realm": REALM, "names": [b"n", b"n" * 65]}, "names[1]"),
    "no name": ({"realm": REALM, "names": [b""]}, "names[0]"),
    "many": ({"realm": REALM, "names": [b"n"] * 4097}, "4097 names"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_cannot_be_asked_is_refused_by_name(house, case):
    fields, words = BAD[case]
    stub, names = rpc.KvBlocksStub(house.serving), pb.KvBlockNames(**fields)
    request = pb.ReadKvBlocksRequest(blocks=names, block_bytes=FILE_BYTES)
    for call in (stub.Find(names, metadata=introduction()), stub.Read(request, metadata=introduction()).read()):
        refused = await house.refusal(call)
        assert (refused.code(), words in refused.details()) == (Code.INVALID_ARGUMENT, True)


async def test_a_worker_without_a_store_says_so(open_house):
    async with open_house(ready=False) as house:
        call = rpc.KvBlocksStub(house.serving).Find(pb.KvBlockNames(realm=REALM), metadata=introduction())
        refused = await house.refusal(call)
        assert (refused.code(), "keeps no blocks" in refused.details()) == (Code.FAILED_PRECONDITION, True)


async def test_only_so_many_read_at_a_time(house, monkeypatch):
    monkeypatch.setattr(kv_blocks, "MAX_READS", 0)
    request = pb.ReadKvBlocksRequest(blocks=pb.KvBlockNames(realm=REALM, names=NAMES), block_bytes=FILE_BYTES)
    refused = await house.refusal(rpc.KvBlocksStub(house.serving).Read(request, metadata=introduction()).read())
    assert refused.code() is Code.RESOURCE_EXHAUSTED


async def test_a_reader_that_goes_away_makes_room(house, monkeypatch):
    monkeypatch.setattr(kv_blocks, "MAX_READS", 1)
    monkeypatch.setattr(kv_blocks, "PART_BYTES", 10)
    request = pb.ReadKvBlocksRequest(blocks=pb.KvBlockNames(realm=REALM, names=NAMES), block_bytes=FILE_BYTES)
    call = rpc.KvBlocksStub(house.serving).Read(request, metadata=introduction())
    assert len((await call.read()).data) == 10
    call.cancel()
    service = house.front._kv_blocks
    while service._num_reads:
        service._asked.clear()
        await service._asked.wait()
    assert repr(service) == "KvBlocksService(0 reads)"


async def test_a_peer_that_is_not_there_fails_at_once_and_a_closed_one_is_late(unused_port):
    peer = GrpcPeer(KvSource(f"127.0.0.1:{unused_port}"), "")
    with pytest.raises(PeerFailed) as caught:
        await asyncio.to_thread(peer.find, REALM, NAMES)
    assert caught.value.miss is Miss.IO
    for _ in range(2):
        peer.close()
    with pytest.raises(PeerFailed) as caught:
        await asyncio.to_thread(peer.find, REALM, NAMES)
    assert caught.value.miss is Miss.LATE
    assert "closed=True" in repr(peer)


@pytest.fixture
def unused_port():
    """A port of which nobody answers."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_a_peer_that_stalls_is_late_and_one_that_is_closed_meanwhile_ends(monkeypatch):
    class Stalls(rpc.KvBlocksServicer):
        async def Find(self, request, context):  # noqa: N802, ARG002
            asked.set()
            await asyncio.Event().wait()

    asked, server = asyncio.Event(), aio.server()
    rpc.add_KvBlocksServicer_to_server(Stalls(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peer = GrpcPeer(KvSource(f"127.0.0.1:{port}"), "")
    asking = asyncio.create_task(asyncio.to_thread(peer.find, REALM, NAMES))
    await asked.wait()
    peer.close()
    with pytest.raises(PeerFailed) as caught:
        await asking
    assert caught.value.miss is Miss.LATE
    monkeypatch.setattr("dormouse_worker.kv_store.grpc_peer.FIND_S", 0.01)
    with pytest.raises(PeerFailed) as caught:
        await asyncio.to_thread(GrpcPeer(KvSource(f"127.0.0.1:{port}"), "").find, REALM, NAMES)
    assert caught.value.miss is Miss.LATE
    await server.stop(None)


async def test_with_certificates_only_workers_of_the_same_deployment_are_served(open_house, root, tmp_path):
    authority = an_authority()
    own = str(write_bundle(tmp_path / "own", a_bundle(authority, Role.WORKER)))
    gateways = str(write_bundle(tmp_path / "gateway", a_bundle(authority, Role.GATEWAY)))
    strangers = str(write_bundle(tmp_path / "stranger", a_bundle(an_authority(), Role.WORKER)))
    engine = {"kv_store_dir": str(root)}
    async with open_house(engine=engine, ready=False, mutual_tls_dir=own) as house:
        for number, directory in enumerate((own, gateways, strangers, "", str(tmp_path / "none"))):
            here = tmp_path / f"here {number}"
            found, _ = await asyncio.to_thread(fetch, source_at(house), here, NAMES, directory)
            assert found == (5 if directory == own else 0), directory


async def test_a_worker_that_ends_serves_until_nobody_asks_any_more(root, monkeypatch):
    monkeypatch.setattr(kv_blocks, "QUIET_S", 0.01)
    service = KvBlocksService(lambda: str(root))
    await service.until_quiet()
    service.expects_callers = True
    await service.until_quiet()
    with service._counted():
        monkeypatch.setattr(kv_blocks, "MOST_QUIET_S", 0.1)
        await service.until_quiet()
    nobody = KvBlocksService(lambda: "")
    nobody.expects_callers = True
    await nobody.until_quiet()


async def test_a_front_that_drains_with_streams_waits_for_who_goes_on_with_them(open_house, root, monkeypatch):
    monkeypatch.setattr(kv_blocks, "QUIET_S", 0.01)
    async with open_house(drain_timeout_s=0.05, engine={"kv_store_dir": str(root)}) as house:
        call = await house.begin_request()
        house.stop.set()
        assert await house.running == 0
        assert house.front._kv_blocks.expects_callers
        await house.refusal(call.read())
