"""What an idle engine saves of its cache, and when it stops."""

import pytest

from dormouse_worker.engine import store_threads
from dormouse_worker.kv_store.budget import PAGE_BYTES
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Block, Miss
from dormouse_worker.kv_store.testing import DictBlockStore
from tests.worker.engine.store_kit import BLOCK_BYTES, PROMPT, StoredEngine


@pytest.fixture
def store():
    return DictBlockStore()


def test_an_idle_engine_saves_once_what_it_has(store):
    engine = StoredEngine(store)
    engine.ask(PROMPT)
    engine.keeper.save_some()
    engine.finish_writing()
    assert len(store.blocks) == 5
    store.blocks.clear()
    engine.keeper.save_some()
    engine.save()
    assert len(store.blocks) == 5


@pytest.mark.parametrize("at_once", [False, True])
def test_of_what_does_not_fit_the_store_has_what_was_used_last_and_nobody_writes_on(tmp_path, monkeypatch, at_once):
    """A cache is often larger than its store: what is saved first must not make room for what is saved last."""
    monkeypatch.setattr(store_threads, "MAX_WRITE_BYTES", 2 * BLOCK_BYTES)
    store = FileBlockStore(tmp_path, bytes(32), 7 * PAGE_BYTES)  # five blocks
    engine, last = StoredEngine(store, num_blocks=20), range(500, 517)
    for prompt in (PROMPT, range(300, 317), last):
        engine.ask(prompt)
    for _ in range(20):
        engine.save() if at_once else engine.keeper.save_some()
        engine.finish_writing()
    assert StoredEngine(store).ask(last) == 16
    assert engine.count("writes") == 5


def test_an_idle_engine_does_not_write_on_where_dearer_blocks_of_another_model_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(store_threads, "MAX_WRITE_BYTES", 2 * BLOCK_BYTES)
    limit, others = 7 * PAGE_BYTES, [Block(bytes([number]), memoryview(b"other")) for number in range(2)]
    FileBlockStore(tmp_path, bytes([1]) * 32, limit).write(others, recompute_s=1000.0)
    engine = StoredEngine(FileBlockStore(tmp_path, bytes(32), limit), num_blocks=20)
    engine.ask(PROMPT)
    for _ in range(20):
        engine.keeper.save_some()
        engine.finish_writing()
    assert engine.count("writes") == 5


def test_an_idle_engine_that_could_not_save_tries_again_once_there_is_something_new(store, monkeypatch):
    monkeypatch.setattr(store_threads, "MAX_WRITE_BYTES", 2 * BLOCK_BYTES)
    engine, tries = StoredEngine(store), []
    monkeypatch.setattr(store, "write", lambda blocks, *_: tries.append(blocks) or {Miss.IO: len(blocks)})
    for number in (1, 2):
        engine.ask(range(100 * number, 100 * number + 17))
        for _ in range(3):
            engine.keeper.save_some()
            engine.finish_writing()
        assert len(tries) == number
