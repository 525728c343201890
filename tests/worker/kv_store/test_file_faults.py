"""Whatever happens to the files or the disk, a block is what was written or a miss with its reason."""

import errno
import os
import random
import subprocess
import sys

import pytest

from dormouse_worker.kv_store import file_store
from dormouse_worker.kv_store.block_file import HEADER_BYTES, VERSION, check_block, pack_header
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Miss
from tests.worker.kv_store.store_files import OTHER_REALM, REALM, SIZE, TAKEN, block, content, file_of, read, taken

LIMIT = 1 << 20
NUM_FAULTS = 1000


@pytest.fixture
def store(tmp_path):
    return FileBlockStore(tmp_path, REALM, LIMIT)


def flip(raw, rng):
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def cut(raw, rng):
    del raw[rng.randrange(len(raw)) :]


def lengthen(raw, rng):
    raw += rng.randbytes(rng.randrange(1, 9))


def lose_a_page(raw, rng):
    start = rng.randrange(len(raw) - 64)
    raw[start : start + 64] = bytes(64)


def test_a_thousand_damaged_files_are_a_thousand_misses(store, tmp_path):
    rng = random.Random(17)
    names = [number.to_bytes(2, "big") for number in range(40)]
    for number in range(NUM_FAULTS):
        name, damage = rng.choice(names), rng.choice((flip, cut, lengthen, lose_a_page))
        store.write([block(name)])
        raw = bytearray(file_of(tmp_path, name).read_bytes())
        damage(raw, rng)
        file_of(tmp_path, name).write_bytes(raw)
        assert isinstance(read(store, name), Miss), (number, damage)
        if not store.has(name):
            assert read(store, name) is Miss.ABSENT


def test_every_flipped_bit_of_a_header_is_a_miss():
    data = memoryview(b"block")
    header = pack_header(REALM, b"a", data)
    assert check_block(header, REALM, b"a", data) is None
    for bit in range(8 * HEADER_BYTES):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        assert check_block(bytes(flipped), REALM, b"a", data) is not None, bit


def test_the_file_of_another_realm_or_name_in_its_place_is_a_miss(store, tmp_path):
    store.write([block(b"a"), block(b"b")])
    FileBlockStore(tmp_path, OTHER_REALM, LIMIT).write([block(b"a", content(7))])
    file_of(tmp_path, b"a").write_bytes(file_of(tmp_path, b"a", OTHER_REALM).read_bytes())
    assert read(store, b"a") is Miss.OTHER
    file_of(tmp_path, b"a").write_bytes(file_of(tmp_path, b"b").read_bytes())
    assert read(store, b"a") is Miss.OTHER
    assert not store.has(b"a")


def test_a_block_of_another_size_is_a_miss(store):
    store.write([block(b"a")])
    assert read(store, b"a", SIZE + 1) is Miss.OTHER


def test_the_format_of_a_later_version_is_a_miss_and_stays(store, tmp_path):
    store.write([block(b"a")])
    file = file_of(tmp_path, b"a")
    raw = bytearray(file.read_bytes())
    raw[6:8] = (VERSION + 1).to_bytes(2, "little")
    file.write_bytes(raw)
    assert read(store, b"a") is Miss.VERSION
    assert file.exists()


def test_a_directory_in_place_of_a_block_is_a_miss(store, tmp_path):
    file_of(tmp_path, b"a").mkdir()
    assert read(store, b"a") is Miss.IO


@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, Miss.NO_ROOM), (errno.EIO, Miss.IO)])
def test_a_disk_that_refuses_keeps_nothing_and_leaves_nothing(store, tmp_path, monkeypatch, number, reason):
    def refuse(fd, parts):
        os.write(fd, bytes(parts[0])[:10])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_store.os, "writev", refuse)
    assert store.write([block(b"a"), block(b"b")]) == {reason: 2}
    assert not store.has(b"a")
    assert taken(tmp_path) == 0


def test_a_disk_that_takes_a_part_only_keeps_nothing(store, tmp_path, monkeypatch):
    monkeypatch.setattr(file_store.os, "writev", lambda fd, parts: os.write(fd, bytes(parts[0])))
    assert store.write([block(b"a")]) == {Miss.NO_ROOM: 1}
    assert taken(tmp_path) == 0


def test_a_disk_that_does_not_read_is_a_miss(store, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "no")

    store.write([block(b"a")])
    with monkeypatch.context() as patch:
        patch.setattr(file_store.os, "preadv", refuse)
        assert read(store, b"a") is Miss.IO
    assert read(store, b"a") == content(b"a")


def test_a_disk_that_removes_nothing_keeps_nothing_new(tmp_path, monkeypatch):
    def refuse(path, **_):
        if path.suffix == ".kv":
            raise OSError(errno.EROFS, "no")

    store = FileBlockStore(tmp_path, REALM, 2 * TAKEN)
    store.write([block(b"a")])
    with monkeypatch.context() as patch:
        patch.setattr(file_store.Path, "unlink", refuse)
        assert store.write([block(b"b")]) == {Miss.IO: 1}
    assert store.write([block(b"c")]) == {}
    assert taken(tmp_path) == store.num_bytes == TAKEN


def test_a_root_that_is_gone_costs_blocks_and_raises_nothing(store, tmp_path):
    store.write([block(b"a")])
    for file in sorted(tmp_path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    tmp_path.rmdir()
    assert read(store, b"a") is Miss.ABSENT
    assert sum(store.write([block(b"b")]).values()) == 1
    store.touch([b"a"])
    store.drop([b"a"])
    store.drop([])
    tmp_path.mkdir()


def test_what_a_killed_writer_left_is_cleaned_away(store, tmp_path):
    (tmp_path / "writing").write_bytes(bytes(100_000))
    store.write([block(b"a")])
    assert taken(tmp_path) == store.num_bytes == TAKEN


def test_a_clock_that_goes_back_makes_nothing_older(tmp_path):
    times = iter([10**18, 10**9, 10**9, 10**9])
    store = FileBlockStore(tmp_path, REALM, LIMIT, clock_ns=lambda: next(times))
    store.write([block(b"a")])
    store.write([block(b"b")])
    assert file_of(tmp_path, b"b").stat().st_mtime_ns > file_of(tmp_path, b"a").stat().st_mtime_ns
    assert read(store, b"a") == content(b"a")


WRITER = """
import itertools, sys
from pathlib import Path
from dormouse_worker.kv_store.file_store import FileBlockStore
from tests.worker.kv_store.store_files import REALM, block
store = FileBlockStore(Path(sys.argv[1]), REALM, int(sys.argv[2]))
for number in itertools.count():
    store.write([block(b"%d %d" % (number, each)) for each in range(4)])
    print(number, flush=True)
"""


def test_what_a_neighbour_wrote_that_was_killed_meanwhile_is_whole_or_missed(tmp_path):
    limit = 64 * TAKEN
    reader = FileBlockStore(tmp_path, REALM, limit)
    for kill in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(limit)], stdout=subprocess.PIPE) as writer:
            while int(writer.stdout.readline()) < 20 * kill:
                pass
            writer.kill()
        names = [b"%d %d" % (number, each) for number in range(200) for each in range(4)]
        assert reader.look(names) + kill > 0
        assert {read(reader, name) for name in names} <= {Miss.ABSENT, *map(content, names)}
        assert not reader.is_shared()
        reader.write([block(b"next")])
        assert taken(tmp_path) == reader.num_bytes <= limit
