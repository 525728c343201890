"""A store of files: what comes back is what was written; who shares it, who may enter, what goes first."""

import random
import stat
import threading

import pytest

from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Miss
from tests.worker.kv_store.store_files import OTHER_REALM, REALM, TAKEN, block, content, file_of, read, taken

LIMIT = 1 << 20


@pytest.fixture
def store(tmp_path):
    return FileBlockStore(tmp_path, REALM, LIMIT)


def bounded_store(root, num_blocks):
    """Return a store with room for so many blocks and a clock that goes by seconds."""
    clock = iter(range(10**9, 10**12, 10**9))
    return FileBlockStore(root, REALM, (num_blocks + 1) * TAKEN, clock_ns=lambda: next(clock))


def kept(store, names):
    return "".join(name.decode() for name in names if store.has(name))


def test_what_was_written_is_read_also_by_the_next_process(store, tmp_path):
    assert store.write([block(b"a"), block(b"b")]) == {}
    for each in (store, FileBlockStore(tmp_path, REALM, LIMIT)):
        assert each.has(b"a")
        assert read(each, b"a") == content(b"a")
        assert read(each, b"b") == content(b"b")
        assert each.num_bytes == taken(tmp_path) == 2 * TAKEN
    assert not store.has(b"c")
    assert read(store, b"c") is Miss.ABSENT


def test_only_the_owner_may_enter(tmp_path):
    root = tmp_path / "made"
    FileBlockStore(root, REALM, LIMIT).write([block(b"a")])
    paths = (root, root / REALM.hex(), file_of(root, b"a"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o600]


def test_another_realm_has_none_of_it_and_shares_the_budget(store, tmp_path):
    store.write([block(b"a")])
    other = FileBlockStore(tmp_path, OTHER_REALM, LIMIT)
    assert not other.has(b"a")
    assert read(other, b"a") is Miss.ABSENT
    assert other.num_bytes == store.num_bytes
    other.clear()
    store.drop([])
    assert store.has(b"a")


def test_what_another_wrote_is_found_by_its_name(store, tmp_path):
    other = FileBlockStore(tmp_path, REALM, LIMIT)
    store.write([block(b"a"), block(b"b")])
    assert kept(other, (b"a", b"b")) == ""
    assert other.look([b"a", b"unknown"]) == 1
    assert kept(other, (b"a", b"b")) == "a"
    assert read(other, b"a") == content(b"a")
    assert other.look([b"a", b"b"]) == 1, "what it knew is no news"
    assert FileBlockStore(tmp_path, OTHER_REALM, LIMIT).look([b"a"]) == 0
    other.write([block(b"c")])
    assert other.num_bytes == taken(tmp_path)


def test_who_shares_a_root_knows(store, tmp_path):
    assert not store.is_shared()
    other = FileBlockStore(tmp_path, OTHER_REALM, LIMIT)
    assert store.is_shared()
    assert other.is_shared()
    del other
    assert not store.is_shared()


def test_what_cannot_be_looked_at_is_not_there(store, tmp_path):
    other = FileBlockStore(tmp_path, REALM, LIMIT)
    other.write([block(b"a")])
    directory = file_of(tmp_path, b"a").parent
    directory.rename(tmp_path / "away")
    directory.write_text("")
    assert store.look([b"a"]) == 0


def test_what_is_dropped_or_cleared_is_forgotten_by_all(store, tmp_path):
    other = FileBlockStore(tmp_path, REALM, LIMIT)
    store.write([block(b"a"), block(b"b"), block(b"c")])
    other.drop([])
    other.drop([b"a", b"unknown"])
    store.drop([])
    assert kept(store, (b"a", b"b", b"c")) == "bc"
    store.clear()
    assert (kept(store, (b"a", b"b", b"c")), store.num_bytes, taken(tmp_path)) == ("", 0, 0)


def test_the_budget_holds_to_the_page_and_the_least_worth_goes_first(tmp_path):
    store = bounded_store(tmp_path, 4)
    names = (b"a", b"b", b"c", b"d", b"e")
    for name in names[:4]:
        assert store.write([block(name)]) == {}
    store.touch([b"a"])
    store.write([block(b"e")])
    assert kept(store, names) == "acde"
    assert taken(tmp_path) == store.num_bytes == 4 * TAKEN


def test_what_is_written_again_counts_as_used(tmp_path):
    store = bounded_store(tmp_path, 2)
    for name in (b"a", b"b", b"a", b"c"):
        store.write([block(name)])
    assert kept(store, (b"a", b"b", b"c")) == "ac"


def test_what_is_dear_outlasts_what_is_cheap(tmp_path):
    store = bounded_store(tmp_path, 2)
    store.write([block(b"d")], recompute_s=1.0)
    store.write([block(b"c")])
    assert store.write([block(b"n")], recompute_s=0.01) == {}
    assert kept(store, (b"d", b"c", b"n")) == "dn"


def test_what_is_worth_less_than_all_there_is_is_not_kept(tmp_path):
    store = bounded_store(tmp_path, 2)
    assert store.write([block(b"1"), block(b"2"), block(b"3")]) == {Miss.NO_ROOM: 1}
    assert kept(store, (b"1", b"2", b"3")) == "12"


def test_a_store_tells_how_many_blocks_it_holds(tmp_path):
    assert bounded_store(tmp_path, 4).capacity(len(content(b"a"))) == 4


def test_a_block_above_the_budget_is_not_kept(store):
    assert store.write([block(b"a", bytes(LIMIT))]) == {Miss.NO_ROOM: 1}


def test_what_went_without_us_makes_room_too(tmp_path):
    store = bounded_store(tmp_path, 2)
    store.write([block(b"a"), block(b"b")])
    file_of(tmp_path, b"b").unlink()
    assert store.write([block(b"c")]) == {}
    assert kept(store, (b"a", b"b", b"c")) == "ac"


def test_files_that_are_not_ours_are_left_alone(store, tmp_path):
    mine = tmp_path / REALM.hex() / "notes.txt"
    mine.write_text("mine")
    (tmp_path / REALM.hex() / "nothex.kv").write_text("a name that no block has")
    store = FileBlockStore(tmp_path, REALM, LIMIT)
    store.write([block(b"a")])
    store.clear()
    assert mine.read_text() == "mine"
    assert not store.has(b"a")


def test_several_writers_share_a_budget_and_tear_nothing(tmp_path):
    limit = 21 * TAKEN
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        store = FileBlockStore(tmp_path, REALM, limit)
        for _ in range(60):
            names = [rng.randrange(60).to_bytes(1, "big") for _ in range(3)]
            store.write([block(name) for name in dict.fromkeys(names)])
            name = rng.choice(names)
            got = read(store, name)
            if got not in {content(name), Miss.ABSENT}:
                wrong.append((name, got))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert taken(tmp_path) <= limit


def test_it_says_what_it_is(store):
    store.write([block(b"a")])
    assert repr(store) == "FileBlockStore(000000000000, 1 blocks, Budget(1 files, 8192 of 1040384 bytes))"
