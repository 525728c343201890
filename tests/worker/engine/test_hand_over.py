"""Streams that leave take their blocks along: what one engine computed the next one reads, after any token."""

import random

import pytest

from dormouse_worker.common.ipc import Leave
from dormouse_worker.engine import block_writer, resting
from dormouse_worker.kv_store.block_file import pack_header
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Miss
from tests.worker.engine.store_kit import BLOCK_BYTES, PROMPT, StoredEngine

REALM, LIMIT = bytes(32), 1 << 20


@pytest.fixture
def store(tmp_path):
    return FileBlockStore(tmp_path, REALM, LIMIT)


@pytest.fixture
def other(tmp_path):
    """A neighbour over the same files."""
    return StoredEngine(FileBlockStore(tmp_path, REALM, LIMIT))


@pytest.fixture
def leaving(store, other):
    """An engine with a stream of which it has said five tokens, and which is to leave."""
    assert store is not other.store
    return begin_to_leave(StoredEngine(store))


def begin_to_leave(engine):
    engine.add(PROMPT, 12)
    for _ in range(5):
        engine.step()
    leave(engine)
    return engine


def leave(engine):
    resting.leave(engine.engine, Leave(is_leaving=True))
    engine.keeper._neighbours.are_there(60.0)


def give_up(engine):
    """Have the engine give up all that it has; return what it had said."""
    ended = resting.give_up(engine.engine)
    assert {output.finish_reason for output in ended.outputs} <= {"abort"}
    engine.told += [ended.kv_store] if ended.kv_store else []
    return engine.said


def go_on(engine, said, prompt=PROMPT, count=12, **fields):
    """Let another engine say the rest, and check the whole; return the blocks that it read for it."""
    before = engine.count("hits")
    engine.said["r"] = list(said)
    engine.add(prompt, count, output_token_ids=list(said), **fields)
    engine.run()
    assert engine.said.pop("r") == engine.expected(prompt, count)
    return engine.count("hits") - before


def test_what_runs_is_written_while_it_goes_on(leaving, other):
    leaving.step()
    leaving.finish_writing()
    assert len(leaving.said["r"]) == 6
    assert leaving.count("handed_over") == 5
    assert go_on(other, leaving.said["r"]) == 5
    leaving.run()
    assert leaving.said["r"] == leaving.expected(PROMPT, 12)


def test_what_is_given_up_is_written_before_anybody_is_told(leaving, other):
    said = give_up(leaving)["r"]
    assert leaving.count("writes") == leaving.count("handed_over") == 5
    assert go_on(other, said) == 5
    assert (leaving.misses(), other.misses()) == ({}, {})


def test_only_so_much_is_copied_in_a_pass(leaving, monkeypatch):
    monkeypatch.setattr(block_writer, "HAND_ON_BYTES", 2 * BLOCK_BYTES)
    for written in (2, 4):
        leaving.step()
        leaving.finish_writing()
        assert leaving.count("handed_over") == written


def test_another_tenant_reads_none_of_it(leaving, other):
    said = give_up(leaving)["r"]
    assert go_on(other, said, cache_salt="another tenant") == 0
    assert other.misses() == {"absent": 5}


def test_where_nobody_could_read_it_nothing_is_written(store):
    engine = begin_to_leave(StoredEngine(store))
    engine.step()
    give_up(engine)
    assert engine.count("handed_over") == 0


def test_streams_that_stay_after_all_are_not_written(leaving):
    resting.leave(leaving.engine, Leave(is_leaving=False))
    leaving.run()
    assert leaving.count("handed_over") == 0


def test_what_nobody_knows_any_more_is_not_written(leaving):
    leaving.engine.forget_prefixes()
    leaving.step()
    give_up(leaving)
    assert leaving.count("handed_over") == 0


def test_writing_that_is_dearer_than_computing_is_left(leaving, other):
    leaving.keeper._rates.note_pass(1_000_000, 0.001)
    leaving.keeper._rates.note_write(1, 1.0)
    said = give_up(leaving)["r"]
    assert leaving.count("handed_over") == 0
    assert go_on(other, said) == 0


def test_a_disk_that_stalls_keeps_nobody_longer_than_a_moment(leaving, other, monkeypatch):
    monkeypatch.setattr(block_writer, "HAND_OVER_S", 0.0)
    monkeypatch.setattr(leaving.keeper._threads, "room_for_writes", lambda: 0)
    said = give_up(leaving)["r"]
    assert leaving.misses() == {"late": 5}
    assert go_on(other, said) == 0


@pytest.mark.parametrize("miss", [Miss.DAMAGED, Miss.TRUNCATED, Miss.OTHER, Miss.ABSENT])
def test_bytes_that_are_not_those_are_computed(leaving, other, tmp_path, miss):
    said = give_up(leaving)["r"]
    for file in tmp_path.glob("*/*.kv"):
        data = file.read_bytes()
        if miss is Miss.ABSENT:
            other.store.look([bytes.fromhex(file.stem)])
            file.unlink()
        elif miss is Miss.TRUNCATED:
            file.write_bytes(data[:-1])
        elif miss is Miss.OTHER:
            file.write_bytes(
                b"".join(each.read_bytes() for each in tmp_path.glob("*/*.kv") if each != file)[: len(data)]
            )
        else:
            file.write_bytes(bytes([*data[:-1], data[-1] ^ 1]))
    assert go_on(other, said) == 0
    assert other.misses() == {str(miss): 1}


def test_a_source_that_dies_before_it_wrote_costs_computing_and_is_counted(leaving, other):
    assert go_on(other, leaving.said["r"]) == 0
    assert other.misses() == {"absent": 5}


def test_a_target_without_room_computes(leaving, tmp_path):
    target, said = StoredEngine(FileBlockStore(tmp_path, REALM, LIMIT), num_blocks=10), give_up(leaving)["r"]
    target.add(range(300, 318), 8, "holds")
    target.step()
    assert target.tables.pool.num_available == 5
    target.add(range(400, 402), 3, "holds, too")
    target.step()
    assert go_on(target, said) == 0
    assert target.misses() == {"no_room": 5}
    assert target.said["holds"] == target.expected(range(300, 318), 8)


def test_without_an_engine_nobody_leaves():
    resting.leave(None, Leave(is_leaving=True))


def test_it_says_what_it_is(leaving):
    writer = leaving.keeper._writer
    assert repr(leaving.keeper._tally) == "StoreTally({}, misses={})"
    assert repr(writer) == "BlockWriter(StoreThreads(0 bytes to write), HandOver(5 blocks))"


def forged(name, data):
    """Return a file of the same name that another model wrote."""
    return pack_header(bytes([1]) * len(REALM), name, memoryview(data)) + data


def settle(engines):
    """Wait for the threads of the engines: what they read of a harmed file has it removed, at any moment."""
    for keeper in (engine.keeper for engine in engines):
        for thread in (keeper._neighbours._asker, keeper._threads._reader, keeper._threads._writer):
            thread.submit(lambda: None).result(60.0)


def harm(root, rng):
    """Do something to one of the files, now and then; return whether that was so."""
    files = [file for file in sorted(root.glob("*/*.kv")) if file.stat().st_size]
    if not files or rng.random() < 0.3:
        return False
    file = rng.choice(files)
    data = file.read_bytes()
    place = rng.randrange(len(data))
    what = rng.choice(["flipped", "cut", "another block's", "another model's", "gone", "half written"])
    if what == "flipped":
        file.write_bytes(bytes([*data[:place], data[place] ^ (1 << rng.randrange(8)), *data[place + 1 :]]))
    elif what == "cut":
        file.write_bytes(data[:place])
    elif what == "another block's":
        file.write_bytes(files[files.index(file) - 1].read_bytes())
    elif what == "another model's":
        file.write_bytes(forged(bytes.fromhex(file.stem), bytes(BLOCK_BYTES)))
    elif what == "gone":
        file.unlink()
    else:
        (root / "writing").write_bytes(data[:place])
    return True


@pytest.mark.parametrize("windows", [(None,), (None, 6), (5,)])
def test_streams_between_two_engines_say_what_they_would_say_alone(tmp_path, windows):
    """How much was read, and was missed, is counted over many streams: of a single one it depends on threads."""
    num_read = faults = misses = 0
    for seed in range(6):
        counts = move_streams(tmp_path / str(seed), windows, random.Random(seed))
        num_read, faults, misses = (sum(both) for both in zip((num_read, faults, misses), counts, strict=True))
    assert num_read
    assert faults
    assert misses


def move_streams(root, windows, rng):
    """Move streams to and fro between two engines; return how many blocks were read, harmed and missed."""
    engines = [
        StoredEngine(FileBlockStore(root, REALM, LIMIT), num_blocks=12 * len(windows), windows=windows)
        for _ in range(2)
    ]
    num_read = faults = 0
    for number in range(8):
        prompt, salt = [rng.randrange(900) for _ in range(rng.randrange(1, 18))], rng.choice(["", "x"])
        said, here = [], rng.choice((0, 1))
        while len(said) < 12:
            engine, before = engines[here], engines[here].count("hits")
            engine.said["r"] = list(said)
            engine.add(prompt, 12, output_token_ids=list(said), cache_salt=salt)
            for _ in range(rng.randrange(5)):
                engine.step()
            leave(engine)
            for _ in range(rng.randrange(3)):
                engine.step()
            said = list(give_up(engine).pop("r"))
            resting.leave(engine.engine, Leave(is_leaving=False))
            settle(engines)
            faults += harm(root, rng)
            if rng.random() < 0.2:
                engine.engine.forget_prefixes()
            engine.engine.check_integrity()
            num_read += engine.count("hits") - before
            here = 1 - here
        assert said == engines[0].expected(prompt, 12), number
    return num_read, faults, sum(sum(engine.misses().values()) for engine in engines)
