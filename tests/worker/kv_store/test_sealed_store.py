"""Blocks that lie encrypted: they come back, nobody reads or exchanges them, and files tell nothing of them."""

import itertools

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.kv_store.block_file import HEADER_BYTES, pack_header
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Miss
from dormouse_worker.kv_store.sealed_store import SEAL_BYTES, SealedStore, Secret, read_secret
from tests.worker.kv_store.store_files import OTHER_REALM, REALM, SIZE, block, content, read

SECRET, OTHER_SECRET = b"s" * 32, b"t" * 32
NAMES = [b"\0one", b"\0two", b"\1one"]
LIMIT = 1 << 20


def sealed(root, secret=SECRET, realm=REALM):
    kept = Secret(secret, realm)
    return SealedStore(FileBlockStore(root, kept.realm, LIMIT), kept)


def files(root):
    return sorted(root.glob("*/*.kv"))


@pytest.fixture
def store(tmp_path):
    """A store with three blocks."""
    store = sealed(tmp_path)
    assert store.write([block(name) for name in NAMES]) == {}
    return store


def test_blocks_come_back_also_in_another_process(store, tmp_path):
    for each in (store, sealed(tmp_path)):
        assert all(each.has(name) for name in NAMES)
        assert [read(each, name) for name in NAMES] == [content(name) for name in NAMES]
    assert read(store, b"unknown") == Miss.ABSENT


@pytest.mark.usefixtures("store")
def test_files_hold_neither_blocks_nor_names(tmp_path):
    assert len(files(tmp_path)) == len(NAMES)
    for file, name in itertools.product(files(tmp_path), NAMES):
        held = file.read_bytes()
        assert name.hex() not in file.name
        assert name not in held
        assert not any(content(name)[start : start + 8] in held for start in range(0, SIZE, 8))
    assert SECRET not in b"".join(file.read_bytes() for file in files(tmp_path))


def test_the_same_block_is_never_the_same_file(tmp_path):
    for root in ("a", "b"):
        sealed(tmp_path / root).write([block(NAMES[0])])
    (first,), (second,) = files(tmp_path / "a"), files(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes()[HEADER_BYTES:] != second.read_bytes()[HEADER_BYTES:]


@pytest.mark.parametrize(("secret", "realm"), [(OTHER_SECRET, REALM), (SECRET, OTHER_REALM)])
def test_another_secret_or_realm_finds_nothing_and_takes_nothing_away(store, tmp_path, secret, realm):
    other = sealed(tmp_path, secret, realm)
    assert [read(other, name) for name in NAMES] == [Miss.ABSENT] * len(NAMES)
    assert [read(store, name) for name in NAMES] == [content(name) for name in NAMES]


def forge(file, body, realm=None, name=None):
    """Write a file whose checksums are right: whoever can write the directory can do so."""
    file.write_bytes(pack_header(realm or bytes.fromhex(file.parent.name), name or name_in(file), body) + bytes(body))


def name_in(file):
    return bytes.fromhex(file.stem)


@pytest.mark.parametrize("place", [0, 11, 12, SIZE // 2, SIZE + SEAL_BYTES - 1], ids=str)
def test_a_changed_byte_is_a_miss_though_the_checksums_were_made_anew(store, tmp_path, place):
    for file in files(tmp_path):
        body = bytearray(file.read_bytes()[HEADER_BYTES:])
        body[place] ^= 1
        forge(file, memoryview(body))
    assert [read(store, name) for name in NAMES] == [Miss.DAMAGED] * len(NAMES)
    assert files(tmp_path) == [], "what was changed is removed"


def test_a_block_in_anothers_place_is_a_miss(store, tmp_path):
    first, second, *_ = files(tmp_path)
    forge(first, memoryview(second.read_bytes()[HEADER_BYTES:]))
    said = [read(store, name) for name in NAMES]
    assert said.count(Miss.DAMAGED) == 1
    assert sum(isinstance(each, bytes) for each in said) == 2


def test_a_block_of_an_unencrypted_store_is_a_miss(store, tmp_path):
    [file, *_] = files(tmp_path)
    forge(file, memoryview(content(b"planted", SIZE + SEAL_BYTES)))
    assert [read(store, name) for name in NAMES].count(Miss.DAMAGED) == 1


def test_what_is_used_lasts_and_what_is_dropped_is_gone(store, tmp_path):
    store.touch(NAMES[:1], 5.0)
    store.drop(NAMES[1:2])
    store.drop([])
    assert [store.has(name) for name in NAMES] == [True, False, True]
    newest = max(files(tmp_path), key=lambda file: file.stat().st_mtime_ns)
    store.drop(NAMES[:1])
    assert newest not in files(tmp_path)
    assert store.num_bytes == sealed(tmp_path).num_bytes > 0
    store.clear()
    assert files(tmp_path) == []


def test_what_another_wrote_is_found_with_the_secret_alone(store, tmp_path):
    other, stranger = sealed(tmp_path), sealed(tmp_path, b"x" * 32)
    store.write([block(b"new")])
    assert other.is_shared()
    assert (other.look([b"new"]), stranger.look([b"new"])) == (1, 0)
    assert read(other, b"new") == content(b"new")


def test_the_seal_counts_for_the_room(tmp_path):
    plain = FileBlockStore(tmp_path, REALM, LIMIT)
    page = 4096 - HEADER_BYTES
    assert sealed(tmp_path).capacity(page) == plain.capacity(page + SEAL_BYTES) < plain.capacity(page)


def test_a_secret_is_read_without_the_line_end():
    assert read_secret(SECRET.decode() + "\n") == SECRET


@pytest.mark.parametrize(("held", "count"), [("", 0), (" ", 0), ("x" * 31 + "\n", 31)])
def test_a_secret_that_is_none_is_refused_with_both_numbers(held, count):
    with pytest.raises(InvalidSettings, match=f"DORMOUSE_KV_STORE_KEY has {count} bytes; a secret has at least 32"):
        read_secret(held)


def test_no_secret_stands_in_a_representation(store):
    assert SECRET.decode() not in f"{store!r}{Secret(SECRET, REALM)!r}"
