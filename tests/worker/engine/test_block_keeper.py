"""Blocks outlive the engine: what one process computed the next one reads, and says the same."""

import random
import threading

import pytest

from dormouse_worker.engine import store_threads
from dormouse_worker.engine.block_keeper import MOST_PATIENCE_S
from dormouse_worker.engine.prefix import hash_block, root_hash
from dormouse_worker.engine.testing import make_add
from dormouse_worker.kv_store.interface import Miss
from dormouse_worker.kv_store.testing import DictBlockStore
from tests.worker.engine.store_kit import BLOCK_BYTES, PROMPT, StoredEngine


class SlowStore(DictBlockStore):
    """A store whose readings wait until the test lets them go on."""

    def __init__(self):
        super().__init__()
        self.may_read = threading.Event()
        self.has_begun = threading.Event()

    def read(self, name, into):
        self.has_begun.set()
        assert self.may_read.wait(60)
        return super().read(name, into)


def hashes_of(prompt, size=4):
    tokens, hashes = list(prompt), [root_hash("")]
    for start in range(0, len(tokens) - size + 1, size):
        hashes.append(hash_block(hashes[-1], tokens[start : start + size]))
    return hashes[1:]


def names_of(prompt):
    return [bytes([0]) + each for each in hashes_of(prompt)]


def computed_before(store):
    """Return the engine of a process that computed the prompt and saved it."""
    engine = StoredEngine(store)
    engine.ask(PROMPT)
    engine.save()
    return engine


@pytest.fixture
def store():
    return DictBlockStore()


def test_the_next_engine_reads_what_the_last_one_saved(store):
    first = computed_before(store)
    assert (len(store.blocks), first.count("writes"), first.count("written_bytes")) == (5, 5, 5 * BLOCK_BYTES)
    second = StoredEngine(store)
    assert second.ask(PROMPT) == 16
    assert (second.count("hits"), second.count("read_bytes"), second.misses()) == (4, 4 * BLOCK_BYTES, {})


def test_a_session_goes_on_with_its_answer(store):
    first = StoredEngine(store)
    first.ask(PROMPT, 8)
    first.save()
    longer = [*PROMPT, *first.expected(PROMPT, 8), 7]
    assert StoredEngine(store).ask(longer, 4) == 24


def test_only_what_the_pool_does_not_know_is_read(store):
    engine = StoredEngine(store)
    engine.ask(PROMPT)
    engine.save()
    engine.ask(PROMPT)
    assert store.reads == []
    other = StoredEngine(store)
    other.ask(range(100, 109))
    reads = len(store.reads)
    assert other.ask(PROMPT) == 16
    assert len(store.reads) == reads + 2


def test_another_salt_reads_nothing(store):
    computed_before(store)
    assert StoredEngine(store).ask(PROMPT, cache_salt="other") == 0
    assert store.reads == []


def test_log_probabilities_of_the_prompt_are_computed(store):
    computed_before(store)
    second = StoredEngine(store)
    assert second.engine.add(make_add("r", PROMPT, prompt_logprobs=0)) is None
    second.run()
    assert store.reads == []


def test_what_makes_room_for_others_is_written_and_comes_back(store):
    engine = StoredEngine(store, num_blocks=8)
    engine.ask(PROMPT)
    for start in (200, 300, 400):
        engine.ask(range(start, start + 17))
    engine.finish_writing()
    assert engine.tables.pool.find((0, hashes_of(PROMPT)[0])) is None
    assert engine.ask(PROMPT) == 16
    assert engine.count("hits") == 4


def test_what_makes_room_for_blocks_that_are_read_is_copied_before_they_overwrite_it(store):
    computed_before(store)
    second, other = StoredEngine(store, num_blocks=8), range(300, 328)
    second.ask(other)
    assert second.ask(PROMPT) == 16
    second.save()
    assert StoredEngine(store).ask(other) == 24


@pytest.mark.parametrize("miss", list(Miss))
def test_a_miss_is_computed_and_counted(store, miss):
    computed_before(store)
    second = StoredEngine(store)
    store.faults[names_of(PROMPT)[2]] = miss
    assert second.ask(PROMPT) == 8
    assert second.misses() == {str(miss): 1}


def test_who_decodes_goes_on_while_another_waits_for_its_blocks():
    store = SlowStore()
    computed_before(store)
    second = StoredEngine(store, num_blocks=20)
    second.add(range(300, 304), 20, "decodes")
    second.add(PROMPT, 4, "waits")
    for _ in range(5):
        second.step()
    assert {name: len(tokens) for name, tokens in second.said.items()} == {"decodes": 5}
    store.may_read.set()
    second.run()
    assert second.said == {"decodes": second.expected(range(300, 304), 20), "waits": second.expected(PROMPT, 4)}
    assert second.count("hits") == 4


def test_a_store_that_stalls_is_given_up_and_nobody_asks_it_meanwhile():
    store = SlowStore()
    computed_before(store)
    second = StoredEngine(store)
    second.add(PROMPT)
    second.step()
    assert not second.said
    second.clock.now_s += MOST_PATIENCE_S + 1
    second.run()
    assert second.said == {"r": second.expected(PROMPT, 4)}
    assert second.misses() == {"late": 1}
    second.engine.forget_prefixes()
    assert second.ask(PROMPT, request_id="s") == 0
    store.may_read.set()
    second.keeper._threads._reader.submit(lambda: None).result(60.0)
    second.engine.forget_prefixes()
    assert second.ask(PROMPT, request_id="t") == 16


def test_an_aborted_request_stops_its_reading():
    store = SlowStore()
    computed_before(store)
    second = StoredEngine(store)
    second.add(PROMPT)
    assert store.has_begun.wait(60)
    second.engine.abort(["r"])
    store.may_read.set()
    assert not second.engine.has_work
    second.engine.step()
    second.engine.check_integrity()
    store.reads.clear()
    assert second.ask(PROMPT) == 16
    assert second.count("hits") == 4


@pytest.mark.parametrize("length", [9, 17])
def test_blocks_that_two_requests_wait_for_are_taken_once(length):
    store = SlowStore()
    computed_before(store)
    second = StoredEngine(store)
    second.add(PROMPT[:length], request_id="first")
    second.add(PROMPT, request_id="second")
    store.may_read.set()
    second.keeper._threads._reader.submit(lambda: None).result(60.0)
    second.run()
    assert second.said == {
        "first": second.expected(PROMPT[:length], 4),
        "second": second.expected(PROMPT, 4),
    }
    assert second.count("hits") == 4


def test_what_makes_room_while_the_disk_is_busy_is_lost_and_counted(store, monkeypatch):
    monkeypatch.setattr(store_threads, "MAX_WRITE_BYTES", BLOCK_BYTES)
    may_write, engine = threading.Event(), StoredEngine(store, num_blocks=8)
    monkeypatch.setattr(store, "write", lambda *_: may_write.wait(60) and {})
    for start in (100, 200, 300):
        engine.ask(range(start, start + 17))
    may_write.set()
    engine.finish_writing()
    assert engine.misses()["late"] > 0


def test_what_may_be_no_numbers_is_dropped(store):
    computed_before(store)
    second = StoredEngine(store)
    second.executor.not_finite = {"r"}
    second.add(PROMPT)
    second.run()
    second.save()
    second.finish_writing()
    assert not any(map(store.has, names_of(PROMPT)))


def test_a_reset_forgets_what_is_stored(store):
    engine = StoredEngine(store)
    engine.ask(PROMPT)
    engine.save()
    engine.engine.forget_prefixes()
    engine.keeper.clear()
    engine.finish_writing()
    assert store.blocks == {}
    assert engine.ask(PROMPT) == 0


def test_reading_that_is_dearer_than_computing_is_left(store):
    computed_before(store)
    second = StoredEngine(store)
    second.keeper.note_pass(1000, 0.001)
    second.keeper._rates.note_read(1, 1.0)
    assert second.ask(PROMPT) == 0
    assert store.reads == []


def test_no_more_is_read_than_the_pool_holds(store):
    computed_before(store)
    second = StoredEngine(store, num_blocks=8)
    second.add(range(300, 318), 8, "holds")
    second.engine.step()
    assert second.tables.pool.num_available == 3
    second.add(PROMPT)
    second.run()
    assert store.reads == []


@pytest.mark.parametrize("windows", [(None,), (None, 6), (5,)])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["off", "suffix"])
def test_random_sessions_over_restarts_say_what_they_would_say_alone(store, windows, seed, method):
    rng = random.Random(seed)
    roots = [[rng.randrange(900) for _ in range(20)] for _ in range(3)]
    for life in range(4):
        engine = StoredEngine(store, num_blocks=10 * len(windows), windows=windows, method=method)
        for number in range(6):
            root = rng.choice(roots)
            prompt = [*root[: rng.randrange(1, 21)], *[rng.randrange(900) for _ in range(rng.randrange(3))]]
            guess = [token + (rng.random() < 0.2) for token in engine.expected(prompt, 8)]  # wrong now and then
            salt, count = rng.choice(["", "x"]), rng.randrange(1, 9)
            engine.ask(prompt, count, f"{life}-{number}", cache_salt=salt, prediction_token_ids=guess)
            if rng.random() < 0.3:
                engine.keeper.save_some()
        if rng.random() < 0.8:
            engine.save()
        for name in rng.sample(sorted(store.blocks), len(store.blocks) // 4):
            store.faults[name] = rng.choice(list(Miss))
    assert store.reads
    drafts = [s.draft_token_ids for batch in engine.executor.batches for s in batch.sequences if s.draft_token_ids]
    assert bool(drafts) == (method != "off")


def test_it_says_what_it_is(store):
    assert repr(StoredEngine(store).keeper) == (
        "BlockKeeper(DictBlockStore(0 blocks), 0 readings, StoreThreads(0 bytes to write))"
    )
