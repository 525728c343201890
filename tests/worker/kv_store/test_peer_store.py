"""Blocks of two workers as one store: each from where it is, those of the other one checked, or a miss."""

import pytest

from dormouse_worker.kv_store import peer_store
from dormouse_worker.kv_store.block_file import HEADER_BYTES, pack_header
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Miss
from dormouse_worker.kv_store.peer_store import PeerStore
from dormouse_worker.kv_store.sealed_store import SealedStore, Secret
from tests.worker.kv_store.peer_kit import FakePeer
from tests.worker.kv_store.store_files import OTHER_REALM, REALM, SIZE, block, content, file_of, read

NAMES = [bytes([number]) * 33 for number in range(6)]
LIMIT = 1 << 20


@pytest.fixture
def here(tmp_path):
    return FileBlockStore(tmp_path / "here", REALM, LIMIT)


@pytest.fixture
def peer(tmp_path):
    """Another worker that has all six."""
    FileBlockStore(tmp_path / "there", REALM, LIMIT).write([block(name) for name in NAMES])
    return FakePeer(tmp_path / "there")


@pytest.fixture
def store(here, peer):
    store = PeerStore(here, peer, REALM)
    assert store.look(NAMES) == len(NAMES)
    store.expect(NAMES)
    return store


def read_all(store):
    return [read(store, name) for name in NAMES]


@pytest.mark.parametrize("part_bytes", [1, 999, SIZE + HEADER_BYTES, 1 << 20])
def test_what_the_other_has_comes_in_one_stream(store, peer, part_bytes):
    peer.part_bytes = part_bytes
    assert all(map(store.has, NAMES))
    assert read_all(store) == [content(name) for name in NAMES]
    assert peer.reads == [NAMES]


def test_only_what_is_not_here_is_asked_for(here, peer):
    here.write([block(name, b"h" * SIZE) for name in NAMES[:2]])
    store = PeerStore(here, peer, REALM)
    assert store.look(NAMES) == 4
    store.expect(NAMES)
    assert read_all(store) == [b"h" * SIZE] * 2 + [content(name) for name in NAMES[2:]]
    assert (peer.finds, peer.reads) == ([NAMES[2:]], [NAMES[2:]])


def test_what_comes_to_lie_here_meanwhile_is_passed_over(store, here):
    assert read(store, NAMES[0]) == content(NAMES[0])
    here.write([block(name, b"h" * SIZE) for name in NAMES[1:3]])
    assert read(store, NAMES[1]) == b"h" * SIZE
    assert read(store, NAMES[3]) == content(NAMES[3])


def test_many_names_are_asked_for_in_parts(here, peer, monkeypatch):
    monkeypatch.setattr(peer_store, "MAX_NAMES", 2)
    store = PeerStore(here, peer, REALM)
    assert store.look(NAMES) == len(NAMES)
    store.expect(NAMES)
    assert read_all(store) == [content(name) for name in NAMES]
    assert [len(names) for names in peer.finds] == [2, 2, 2]
    assert peer.reads == [NAMES, NAMES[2:], NAMES[4:]] or [len(names) for names in peer.reads] == [2, 2, 2]


def test_a_peer_that_does_not_answer_has_nothing(here, peer):
    peer.fails_to_find = Miss.IO
    store = PeerStore(here, peer, REALM)
    assert store.look(NAMES) == 0
    store.expect(NAMES)
    assert not any(map(store.has, NAMES))


@pytest.mark.parametrize("why", [Miss.IO, Miss.LATE])
def test_a_stream_that_fails_is_a_miss_for_that_reason(store, peer, why):
    peer.fails_to_read = why
    assert read_all(store) == [why, *[Miss.ABSENT] * 5]
    assert peer.is_closed


def test_a_peer_that_dies_in_the_middle_costs_what_is_left(store, peer):
    peer.breaks_after = 2 * (SIZE + HEADER_BYTES) + 10
    assert read_all(store) == [content(NAMES[0]), content(NAMES[1]), Miss.IO, *[Miss.ABSENT] * 3]


@pytest.mark.parametrize("place", [0, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + SIZE - 1])
def test_a_flipped_byte_is_a_miss_and_nothing_more_is_taken_of_who_sent_it(store, peer, place):
    at = SIZE + HEADER_BYTES + place
    peer.change = lambda data: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
    assert read_all(store) == [content(NAMES[0]), Miss.DAMAGED, *[Miss.ABSENT] * 4]
    assert peer.is_closed


def forged(realm, name):
    data = bytes(SIZE)
    return pack_header(realm, name, memoryview(data)) + data


@pytest.mark.parametrize(("realm", "name"), [(OTHER_REALM, NAMES[0]), (REALM, NAMES[1])])
def test_another_models_or_another_block_is_a_miss(store, peer, realm, name):
    peer.change = lambda data: forged(realm, name) + data
    assert read_all(store) == [Miss.OTHER, *[Miss.ABSENT] * 5]


def test_an_end_within_a_block_and_one_between_two_are_told_apart(store, peer):
    peer.change = lambda data: data[: SIZE + HEADER_BYTES + 5]
    assert read_all(store) == [content(NAMES[0]), Miss.TRUNCATED, *[Miss.ABSENT] * 4]
    file_of(peer.root, NAMES[0]).unlink()
    peer.change = lambda data: data
    store.expect(NAMES)
    assert read_all(store) == [Miss.ABSENT] * 6


def test_what_nobody_expects_is_not_fetched(store, peer):
    store.expect([])
    assert read(store, NAMES[0]) == Miss.ABSENT
    assert peer.reads == []


def test_it_is_written_to_as_the_store_here(store, here, peer):
    assert store.write([block(b"new")]) == {}
    store.touch([b"new"])
    assert (here.has(b"new"), store.num_bytes, store.capacity(SIZE)) == (True, here.num_bytes, here.capacity(SIZE))
    store.drop([b"new"])
    assert not store.has(b"new")
    here.write([block(b"old")])
    store.clear()
    assert not here.has(b"old")
    assert store.is_shared()
    assert all(file_of(peer.root, name).exists() for name in NAMES)
    assert "6 blocks at" in repr(store)


@pytest.mark.parametrize(("secret", "got"), [(b"s" * 32, content(NAMES[0])), (b"t" * 32, Miss.ABSENT)])
def test_encrypted_blocks_travel_as_they_lie_and_only_the_secret_reads_them(tmp_path, secret, got):
    theirs, ours = Secret(b"s" * 32, REALM), Secret(secret, REALM)
    SealedStore(FileBlockStore(tmp_path / "there", theirs.realm, LIMIT), theirs).write([block(NAMES[0])])
    peer = FakePeer(tmp_path / "there")
    here = FileBlockStore(tmp_path / "here", ours.realm, LIMIT)
    store = SealedStore(PeerStore(here, peer, ours.realm), ours)
    store.look(NAMES[:1])
    store.expect(NAMES[:1])
    assert read(store, NAMES[0]) == got
    assert NAMES[0] not in [name for names in peer.finds for name in names]
