"""A stream that moves fetches its blocks from the worker that had it; whatever goes wrong, its tokens are right."""

import random

import pytest

from dormouse_worker.common.ipc import Leave
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.engine import neighbours, resting
from dormouse_worker.engine.sources import Source
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Miss
from dormouse_worker.kv_store.peer_store import PeerStore
from tests.worker.engine.store_kit import BLOCK_BYTES, PROMPT, StoredEngine
from tests.worker.kv_store.peer_kit import FakePeer

REALM, LIMIT = bytes(32), 1 << 20
SOURCE = KvSource("10.0.0.1:50051", ("ticket",))


class Apart:
    """Two engines with a directory each; the second may ask the first."""

    def __init__(self, root, **kinds):
        self.first = StoredEngine(FileBlockStore(root / "first", REALM, LIMIT), **kinds)
        self.second = StoredEngine(FileBlockStore(root / "second", REALM, LIMIT), **kinds)
        self.peer = FakePeer(root / "first", part_bytes=50)
        self.asked = []
        self.second.keeper._open_peer = self._open

    def _open(self, kv_source):
        self.asked.append(kv_source)
        store = PeerStore(self.second.store, self.peer, REALM)
        return Source(store, is_own=False, close=self.peer.close)

    def give_up(self, prompt=PROMPT, count=12, **fields):
        """Have the first one begin, and give up after five tokens; return what it said."""
        self.first.add(prompt, count, **fields)
        for _ in range(5):
            self.first.step()
        resting.leave(self.first.engine, Leave(is_leaving=True, to_peers=True))
        ended = resting.give_up(self.first.engine)
        self.first.told += [ended.kv_store] if ended.kv_store else []
        return self.first.said.pop("r")

    def go_on(self, said, prompt=PROMPT, count=12, **fields):
        """Let the second say the rest, and check the whole; return how many blocks it was sent."""
        self.second.said["r"] = list(said)
        self.second.add(prompt, count, output_token_ids=list(said), kv_source=SOURCE, **fields)
        self.second.run()
        assert self.second.said.pop("r") == self.second.expected(prompt, count)
        return self.second.count("fetched")


@pytest.fixture
def apart(tmp_path):
    return Apart(tmp_path)


@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_a_stream_takes_its_blocks_along_between_two_directories(tmp_path, windows):
    apart = Apart(tmp_path, num_blocks=10 * len(windows), windows=windows)
    fetched = apart.go_on(apart.give_up())
    assert apart.asked == [SOURCE]
    assert fetched == apart.second.count("hits") > 0
    assert apart.first.count("handed_over") > 0
    assert apart.peer.is_closed
    assert apart.second.misses() == {}


def test_all_full_blocks_come_along_and_are_written_here_in_turn(apart):
    assert apart.go_on(apart.give_up()) == 5
    apart.second.save()
    assert apart.second.count("writes") >= 5


def test_another_tenant_is_sent_nothing(apart):
    assert apart.go_on(apart.give_up(), cache_salt="another tenant") == 0
    assert apart.second.misses() == {"absent": 5}
    assert apart.peer.reads == []


def test_without_peers_nothing_is_written_for_them(apart):
    apart.first.add(PROMPT, 12)
    for _ in range(5):
        apart.first.step()
    resting.leave(apart.first.engine, Leave(is_leaving=True))
    resting.give_up(apart.first.engine)
    assert apart.first.count("handed_over") == 0


@pytest.mark.parametrize("why", [Miss.IO, Miss.LATE])
def test_a_peer_that_is_gone_costs_computing(apart, why):
    said = apart.give_up()
    apart.peer.fails_to_find = why
    assert apart.go_on(said) == 0
    assert apart.second.misses() == {"absent": 5}
    assert apart.peer.is_closed


def test_a_peer_that_dies_while_it_sends_costs_computing_the_rest(apart):
    said = apart.give_up()
    apart.peer.breaks_after = 3 * (BLOCK_BYTES + 124)
    assert 0 < apart.go_on(said) < 5
    assert apart.second.misses() == {"io": 1}


def test_other_bytes_are_computed(apart):
    said = apart.give_up()
    apart.peer.change = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    assert apart.go_on(said) == 4
    assert apart.second.misses() == {"damaged": 1}


def test_a_peer_that_stalls_is_waited_for_no_longer_than_its_time(apart):
    said = apart.give_up()
    apart.peer.stalls = True
    apart.second.said["r"] = list(said)
    apart.second.add(PROMPT, 12, output_token_ids=said, kv_source=SOURCE)
    apart.second.step()
    assert apart.second.said["r"] == said
    apart.second.clock.now_s += neighbours.MOST_PEER_PATIENCE_S + 1
    apart.second.run()
    assert apart.second.said["r"] == apart.second.expected(PROMPT, 12)
    assert apart.peer.is_closed
    assert apart.second.misses() == {"late": 1, "absent": 5}


def test_one_that_stalls_while_it_sends_is_waited_for_no_longer_either(apart):
    said = apart.give_up()
    apart.second.said["r"] = list(said)
    apart.second.add(PROMPT, 12, output_token_ids=said, kv_source=SOURCE)
    question = apart.second.keeper._neighbours._questions["r"]
    question.wait(60.0)
    apart.peer.stalls = True
    apart.second.step()
    assert list(apart.second.keeper._readings) == ["r"]
    apart.second.clock.now_s += 31
    apart.second.run()
    assert apart.second.said["r"] == apart.second.expected(PROMPT, 12)
    assert apart.peer.is_closed
    assert apart.second.misses() == {"late": 1}
    apart.peer.stalls = False
    assert apart.second.ask(range(300, 309), request_id="other") == 0  # nobody else waits


def test_a_request_that_ends_asks_no_more(apart):
    said = apart.give_up()
    apart.peer.stalls = True
    apart.second.add(PROMPT, 12, output_token_ids=said, kv_source=SOURCE)
    apart.second.engine.abort(["r"])
    assert apart.peer.is_closed
    assert not apart.second.keeper._neighbours.request_ids


def test_a_peer_that_is_measured_to_be_slower_than_computing_is_not_asked(apart):
    said = apart.give_up()
    apart.second.keeper._rates.note_pass(1_000_000, 0.001)
    apart.second.keeper._rates.note_fetch(1, 1.0)
    assert apart.go_on(said) == 0
    assert apart.asked == []


def test_an_engine_that_may_ask_nobody_computes(apart):
    said = apart.give_up()
    apart.second.keeper._open_peer = None
    assert apart.go_on(said) == 0


def test_what_lies_here_is_not_fetched(apart, tmp_path):
    said = apart.give_up()
    FileBlockStore(tmp_path / "second", REALM, LIMIT)
    for file in (tmp_path / "first").glob("*/*.kv"):
        target = tmp_path / "second" / file.parent.name / file.name
        target.write_bytes(file.read_bytes())
    apart.second.store.look([bytes.fromhex(file.stem) for file in (tmp_path / "first").glob("*/*.kv")])
    assert apart.go_on(said) == 0
    assert apart.second.count("hits") == 5
    assert apart.peer.reads == []


@pytest.mark.parametrize("windows", [(None,), (None, 6), (5,)])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_on_the_way_the_tokens_are_right(tmp_path, windows, seed):
    rng = random.Random(seed)
    num_fetched = 0
    for number in range(10):
        apart = Apart(tmp_path / str(number), num_blocks=12 * len(windows), windows=windows)
        prompt = [rng.randrange(900) for _ in range(rng.randrange(1, 18))]
        said = apart.give_up(prompt)
        what = rng.choice(["nothing", "flipped", "cut", "breaks", "gone", "mixed"])
        place = rng.randrange(700)
        if what == "flipped":
            apart.peer.change = lambda data, at=place: (
                data[:at] + bytes(b ^ 8 for b in data[at : at + 1]) + data[at + 1 :]
            )
        elif what == "cut":
            apart.peer.change = lambda data, at=place: data[:at]
        elif what == "breaks":
            apart.peer.breaks_after = place
        elif what == "gone":
            apart.peer.fails_to_read = Miss.IO
        elif what == "mixed":
            apart.peer.change = lambda data: data[BLOCK_BYTES + 124 :] + data[: BLOCK_BYTES + 124]
        num_fetched += apart.go_on(said, prompt)
        apart.second.engine.check_integrity()
    assert num_fetched
