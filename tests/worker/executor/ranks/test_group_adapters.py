"""What a leader makes of ranks of which some cannot load an adapter, or find another one."""

from __future__ import annotations

import math

import pytest

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.errors import AdapterInvalid, AdapterNotFound, WorkerError
from dormouse_worker.executor.ranks.agreement import RankFailed
from dormouse_worker.executor.ranks.group import Replies
from dormouse_worker.executor.ranks.group_adapters import GroupAdapters
from dormouse_worker.executor.ranks.messages import Answer, encode_value
from dormouse_worker.executor.ranks.orders import Orders


class Ranks:
    """Two ranks that find files by path, each in a folder of its own. Stands for a `RankGroup`."""

    def __init__(self):
        self.files = [{"/a": "digest-a", "/b": "digest-b"} for _ in range(2)]
        self.loaded = [{}, {}]
        self.lost = [{}, {}]
        self.pieces, self.is_late = [0, 0], False

    def name(self, rank):
        return f"rank {rank}"

    def call(self, method, *args, ranks=(0, 1)):
        return Replies({rank: self._answer(rank, method, *args) for rank in ranks})

    @property
    def pods(self):
        return {0: "", 1: ""}

    def send_each(self, method, *args, ranks):
        self.sent = {rank: self._answer(rank, method, *args) for rank in ranks}
        return 1

    def collect_each(self, call_id, ranks, timeout_s):
        assert call_id == 1
        assert set(ranks) == set(self.sent)
        if timeout_s and self.is_late:
            self.is_late = False
            return None
        return Replies(self.sent)

    def _answer(self, rank, method, *args):
        try:
            return Answer(1, encode_value(getattr(self, method)(rank, *args)))
        except (KeyError, WorkerError) as error:
            return Answer(1, error=type(error).__name__, message=str(error))

    def add_lora(self, rank, path, digest, seconds):
        if seconds < math.inf and self.pieces[rank]:
            self.pieces[rank] -= 1
            return None
        found = self.files[rank].get(path)
        if digest in self.loaded[rank]:
            return self.loaded[rank][digest]
        if found is None:
            raise AdapterNotFound(f"{path}: no such directory")
        if found == "crash":
            raise KeyError(path)
        return self.loaded[rank].setdefault(found, AdapterInfo(found, 8, 100 + rank))

    def remove_lora(self, rank, digest):
        self.loaded[rank].pop(digest, None)

    def list_loras(self, rank):
        return AdapterList([*self.loaded[rank].values()], self.lost[rank])


@pytest.fixture
def ranks():
    return Ranks()


@pytest.fixture
def adapters(ranks):
    return GroupAdapters(Orders(ranks))


def test_what_all_ranks_have_is_told_with_the_bytes_of_all(ranks, adapters):
    info = adapters.add("/a", "")
    assert info == AdapterInfo("digest-a", 8, 201)
    assert adapters.list() == AdapterList([info])
    adapters.remove("digest-a")
    assert ranks.loaded == [{}, {}]
    assert adapters.list() == AdapterList([])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("found", "error"), [(None, AdapterNotFound), ("crash", RankFailed)])
def test_what_one_rank_cannot_load_no_rank_keeps_and_the_rank_is_named(ranks, adapters, rank, found, error):
    adapters.add("/b", "")
    before = [dict(each) for each in ranks.loaded]
    ranks.files[rank]["/a"] = found
    with pytest.raises(error, match=rf"^rank {rank}: .*/a"):
        adapters.add("/a", "")
    assert ranks.loaded == before


def test_each_rank_reads_at_its_own_pace_and_is_asked_until_it_is_done(ranks, adapters):
    ranks.pieces, ranks.is_late = [1, 3], True
    asked = []
    while (info := adapters.add("/a", "", 0.001)) is None:
        asked.append(sorted(ranks.sent))
    assert asked == [[0, 1], [0, 1], [0, 1], [1]]
    assert info == AdapterInfo("digest-a", 8, 201)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_while_the_other_reads_is_told_when_that_is_done_and_nobody_keeps_it(
    ranks, adapters, failing
):
    ranks.files[failing]["/a"] = None
    ranks.pieces[1 - failing] = 2
    assert [adapters.add("/a", "", 0.001), adapters.add("/a", "", 0.001)] == [None, None]
    with pytest.raises(AdapterNotFound, match=f"rank {failing}"):
        adapters.add("/a", "", 0.001)
    assert ranks.loaded == [{}, {}]


def test_pods_with_different_files_are_told_so_and_nothing_is_loaded(ranks, adapters):
    ranks.files[1]["/a"] = "digest-c"
    with pytest.raises(AdapterInvalid, match="/a: its digest is digest-c on rank 1, digest-a on rank 0; give all pods"):
        adapters.add("/a", "")
    assert ranks.loaded == [{}, {}]


def test_a_failure_takes_away_nothing_that_was_there_before(ranks, adapters):
    adapters.add("/a", "")
    del ranks.files[1]["/a"]
    with pytest.raises(AdapterNotFound, match="rank 1"):
        adapters.add("/a", "")
    assert [list(each) for each in ranks.loaded] == [["digest-a"], ["digest-a"]]


def test_what_one_rank_has_lost_is_lost_to_all_with_its_reason(ranks, adapters):
    adapters.add("/a", "")
    kept = adapters.add("/b", "")
    del ranks.loaded[1]["digest-a"]
    ranks.lost[1]["digest-a"] = "its files changed"
    assert adapters.list() == AdapterList([kept], {"digest-a": "rank 1: its files changed"})
    assert adapters.add("/a", "digest-a").digest == "digest-a"
