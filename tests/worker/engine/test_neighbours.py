"""A running engine finds what its neighbours wrote, and asks nobody where it is alone."""

import threading

import pytest

from dormouse_worker.engine import neighbours
from dormouse_worker.engine.neighbours import ALONE_S
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.testing import DictBlockStore
from tests.worker.engine.store_kit import PROMPT, StoredEngine
from tests.worker.engine.test_block_keeper import computed_before, names_of

PATIENCE_S = 60.0
REALM, LIMIT = bytes(32), 1 << 20


class StalledStore(DictBlockStore):
    """A store that answers when the test lets it."""

    def __init__(self):
        super().__init__()
        self.may_answer = threading.Event()

    def look(self, names):
        assert self.may_answer.wait(60)
        return super().look(names)


def hide(store):
    """Make what is in the store something that others wrote meanwhile."""
    store.unseen, store.blocks = store.blocks, {}
    store.looks.clear()


def asked_by(engine):
    """Wait until all questions are answered."""
    engine.keeper._neighbours._asker.submit(lambda: None).result(60.0)


@pytest.fixture
def store():
    return DictBlockStore()


@pytest.fixture
def engine(store):
    computed_before(store)
    hide(store)
    return StoredEngine(store)


@pytest.mark.parametrize("windows", [(None,), (None, 6), (5,)])
def test_two_running_engines_share_what_they_compute(tmp_path, windows):
    first, second = (
        StoredEngine(FileBlockStore(tmp_path, REALM, LIMIT), num_blocks=10 * len(windows), windows=windows)
        for _ in range(2)
    )
    assert second.ask(range(300, 309)) == 0
    first.ask(PROMPT, 8)
    first.save()
    longer = [*PROMPT, *first.expected(PROMPT, 8), 7]
    assert second.ask(longer, 4) == 24
    assert second.count("found") >= second.count("hits") > 0
    assert second.ask(longer, 4, cache_salt="another tenant") == 0
    assert second.misses() == {}


def test_what_was_found_counts(engine, store):
    assert engine.ask(PROMPT) == 16
    assert (engine.count("found"), engine.count("hits"), engine.misses()) == (4, 4, {})
    assert [len(names) for names in store.looks] == [1, 2, 1]


def test_what_was_never_said_costs_one_look(engine, store):
    assert engine.ask(range(500, 528)) == 0
    assert [len(names) for names in store.looks] == [1]


def test_the_chain_is_followed_to_its_first_gap(engine, store):
    del store.unseen[names_of(PROMPT)[2]]
    assert engine.ask(PROMPT) == 8


def test_what_is_known_is_not_asked_for(engine, store):
    engine.ask(PROMPT)
    store.looks.clear()
    store.has_others = True
    engine.clock.now_s += ALONE_S
    assert engine.ask(PROMPT, request_id="again") == 16
    assert store.looks == []


def test_who_is_alone_asks_now_and_then(engine, store, monkeypatch):
    monkeypatch.setattr(neighbours, "ALONE_S", 60.0)  # a pass takes a second
    engine.ask(range(500, 509))
    assert engine.ask(PROMPT, request_id="at once") == 0
    assert len(store.looks) == 1
    engine.engine.forget_prefixes()
    engine.clock.now_s += 60
    assert engine.ask(PROMPT, request_id="later") == 16


def test_who_has_neighbours_asks_each_time(engine, store):
    store.has_others = True
    engine.ask(range(500, 509))
    assert engine.ask(PROMPT, request_id="at once") == 16


@pytest.fixture
def stalled(monkeypatch):
    """An engine whose store says nothing."""
    monkeypatch.setattr(neighbours, "TURN_S", 0.0)
    for name in ("LEAST_PATIENCE_S", "MOST_PATIENCE_S"):  # a pass takes a second
        monkeypatch.setattr(neighbours, name, PATIENCE_S)
    store = StalledStore()
    store.may_answer.set()
    computed_before(store)
    store.may_answer.clear()
    hide(store)
    yield StoredEngine(store, num_blocks=20)
    store.may_answer.set()


def test_others_go_on_while_one_waits_for_the_answer(stalled):
    stalled.keeper._neighbours._alone_until_s = 1e9
    stalled.add(range(300, 304), 20, "decodes")
    stalled.keeper._neighbours._alone_until_s = 0.0
    stalled.add(PROMPT, 4, "waits")
    for _ in range(5):
        stalled.step()
    assert {name: len(tokens) for name, tokens in stalled.said.items()} == {"decodes": 5}
    stalled.store.may_answer.set()
    stalled.run()
    assert stalled.said["waits"] == stalled.expected(PROMPT, 4)
    assert stalled.cached["waits"] == 16


def test_a_store_that_does_not_answer_is_left_and_not_asked_meanwhile(stalled):
    stalled.add(PROMPT)
    stalled.step()
    assert not stalled.said
    stalled.clock.now_s += PATIENCE_S + 1
    stalled.run()
    assert stalled.said == {"r": stalled.expected(PROMPT, 4)}
    assert stalled.misses() == {"late": 1}
    assert stalled.ask(range(500, 509), request_id="meanwhile") == 0
    stalled.store.may_answer.set()
    asked_by(stalled)
    stalled.clock.now_s += ALONE_S
    stalled.engine.forget_prefixes()
    assert stalled.ask(PROMPT, request_id="later") == 16


def test_who_is_gone_asks_no_further(stalled):
    stalled.add(PROMPT)
    assert repr(stalled.keeper._neighbours) == "Neighbours(1 questions)"
    [question] = stalled.keeper._neighbours._questions.values()
    assert repr(question) == "Question(r, 4 hashes, answered=False)"
    stalled.engine.abort(["r"])
    stalled.store.may_answer.set()
    asked_by(stalled)
    assert len(stalled.store.looks) == 1
    assert not stalled.engine.has_work


def test_a_reset_lets_those_go_on_who_wait(stalled):
    stalled.add(PROMPT)
    stalled.keeper.clear()
    stalled.run()
    assert stalled.said == {"r": stalled.expected(PROMPT, 4)}
    assert stalled.cached["r"] == 0
