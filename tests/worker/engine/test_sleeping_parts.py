"""Sleeping and waking in parts: what is told, what the prefix cache keeps, what a refusal leaves behind."""

import pytest

from dormouse_worker.common.commands import KV_CACHE, TAGS, WEIGHTS, Sleep
from dormouse_worker.common.errors import GoldenTokensDiffer, InsufficientMemory
from dormouse_worker.common.ipc import RankStatus, State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.sleeping_parts import SleepingParts
from dormouse_worker.engine.status import StatusTeller
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor

AGREED = (10, 2)


class Rank:
    """An engine with its fake worker, and whoever puts them to sleep."""

    def __init__(self, *, keeps=False):
        self.clock, self.sent = ManualClock(), []
        self.executor = FakeExecutor(clock=self.clock)
        self.teller = StatusTeller(self.sent.append)
        fields = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "block_size": 4, "keep_prefix_cache": keeps}
        settings = EngineSettings(model="m", **fields)
        self.engine = build_engine(settings, make_report(), AGREED, self.executor, clock=self.clock)
        self.parts = SleepingParts(self.executor, self.teller, self.clock, settings)

    def sleep(self, level=1, tags=TAGS):
        self.parts.sleep(Sleep(level, tags), self.engine)
        return self.teller.status

    def wake_up(self, tags=TAGS):
        if is_awake := self.parts.wake_up(tags, self.engine):
            self.engine.forget_ranks()
        return is_awake

    def generate(self, prompt):
        """Return how many tokens of a prompt were found in the cache, and the token that follows it."""
        self.engine.add(make_add("r", prompt, max_tokens=1))
        while (outputs := self.engine.step()) is None or not outputs.outputs:
            pass
        (output,) = outputs.outputs
        return output.cached_tokens, output.token_ids[0]


@pytest.fixture
def rank():
    return Rank()


def test_a_sleep_tells_what_sleeps_and_how_long_each_phase_took(rank):
    status = rank.sleep(2)
    assert (status.state, status.sleep_level, status.sleeping_tags) == (State.ASLEEP, 2, TAGS)
    assert (status.sleep_phases, status.last_sleep_seconds) == ({"save": 0.5, "drop": 1.5}, 2.0)
    assert (status.num_gpu_blocks, status.residual_bytes) == (0, 100)


def test_parts_wake_one_after_the_other_and_only_the_last_opens(rank):
    rank.sleep(1)
    assert not rank.wake_up((WEIGHTS,))
    status = rank.teller.status
    assert (status.state, status.sleep_level, status.sleeping_tags) == (State.ASLEEP, 1, (KV_CACHE,))
    assert rank.wake_up(TAGS)
    status = rank.teller.status
    assert (status.sleep_level, status.sleeping_tags, status.wake_phases) == (0, (), {KV_CACHE: 1.0})
    assert rank.executor.calls.count("wake_up") == 2


def test_what_is_awake_is_not_woken_again(rank):
    rank.sleep(1, (KV_CACHE,))
    assert not rank.wake_up((WEIGHTS,))
    assert "wake_up" not in rank.executor.calls
    assert rank.parts.prepare_wake_up((WEIGHTS,)) == 0
    assert "prepare_wake_up" not in rank.executor.calls


def test_a_deeper_sleep_is_reached_from_a_lighter_one(rank):
    rank.sleep(1)
    assert rank.sleep(2).sleep_level == 2
    assert rank.executor.calls.count("sleep") == 2


def test_sleeping_again_says_nothing_but_gives_a_reservation_back(rank):
    rank.sleep(2)
    num_sent = len(rank.sent)
    assert rank.parts.prepare_wake_up(TAGS) == 0
    rank.sleep(1)
    assert len(rank.sent) == num_sent
    assert rank.executor.calls == ["sleep", "prepare_wake_up", "sleep"]


def test_missing_bytes_are_handed_on(rank):
    rank.sleep(1)
    rank.executor.missing_bytes = 4096
    assert rank.parts.prepare_wake_up(TAGS) == 4096


@pytest.mark.parametrize("keeps", [False, True])
def test_prefixes_stay_over_a_light_sleep_only_where_they_shall(keeps):
    rank = Rank(keeps=keeps)
    _, token = rank.generate(range(9))
    rank.sleep(1)
    assert rank.wake_up()
    assert rank.generate(range(9)) == (8 if keeps else 0, token)


def test_a_deep_sleep_forgets_prefixes_also_after_a_light_one():
    rank = Rank(keeps=True)
    rank.generate(range(9))
    rank.sleep(1)
    rank.sleep(2)
    rank.wake_up()
    assert rank.generate(range(9))[0] == 0


def test_a_sleep_of_the_weights_alone_touches_no_prefix(rank):
    rank.generate(range(9))
    rank.sleep(2, (WEIGHTS,))
    rank.wake_up()
    assert rank.generate(range(9))[0] == 8


def test_the_level_told_is_the_deepest_of_what_still_sleeps(rank):
    rank.sleep(1, (KV_CACHE,))
    assert rank.sleep(2, (WEIGHTS,)).sleep_level == 2
    rank.wake_up((WEIGHTS,))
    assert (rank.teller.status.sleep_level, rank.teller.status.sleeping_tags) == (1, (KV_CACHE,))


def test_a_deep_sleep_of_all_forgets_what_a_light_one_kept_though_the_weights_slept_so_deep_already():
    rank = Rank(keeps=True)
    rank.generate(range(9))
    rank.sleep(1)
    rank.sleep(2, (WEIGHTS,))
    rank.sleep(2)
    rank.wake_up()
    assert rank.generate(range(9))[0] == 0


@pytest.mark.parametrize(("keeps", "level"), [(False, 1), (True, 2)])
def test_a_group_forgets_prefixes_when_a_sleep_that_loses_them_is_taken_back(keeps, level):
    rank = Rank(keeps=keeps)
    rank.generate(range(9))
    rank.executor.ranks = (RankStatus(0), RankStatus(1))
    rank.executor.fail_once["sleep"] = InsufficientMemory("rank 1: no host memory")
    with pytest.raises(InsufficientMemory):
        rank.sleep(level)
    assert rank.generate(range(9))[0] == 0


def test_a_group_remembers_prefixes_when_a_sleep_that_keeps_them_is_taken_back():
    rank = Rank(keeps=True)
    rank.generate(range(9))
    rank.executor.ranks = (RankStatus(0), RankStatus(1))
    rank.executor.fail_once["sleep"] = InsufficientMemory("rank 1: no host memory")
    with pytest.raises(InsufficientMemory):
        rank.sleep(1)
    assert rank.generate(range(9))[0] == 8


def test_a_group_forgets_kept_prefixes_when_a_wake_is_taken_back():
    rank = Rank(keeps=True)
    rank.generate(range(9))
    rank.executor.ranks = (RankStatus(0), RankStatus(1))
    rank.sleep(1)
    rank.executor.fail_once["wake_up"] = InsufficientMemory("rank 1: 4096 bytes are missing")
    with pytest.raises(InsufficientMemory):
        rank.wake_up()
    assert rank.wake_up()
    assert rank.generate(range(9))[0] == 0


def test_a_refused_sleep_changes_nothing(rank):
    rank.generate(range(9))
    rank.executor.fail_once["sleep"] = InsufficientMemory("no host memory")
    with pytest.raises(InsufficientMemory):
        rank.sleep(1)
    assert rank.sent == []
    assert rank.generate(range(9))[0] == 8


def test_a_refused_wake_leaves_it_asleep_as_it_was(rank):
    rank.sleep(2)
    rank.executor.fail_once["wake_up"] = InsufficientMemory("4096 bytes are missing")
    with pytest.raises(InsufficientMemory):
        rank.wake_up()
    status = rank.teller.status
    assert (status.state, status.sleep_level, status.sleeping_tags) == (State.ASLEEP, 2, TAGS)
    assert rank.wake_up()


def test_wrong_golden_tokens_are_not_asleep_again(rank):
    rank.sleep(1)
    rank.executor.fail_once["wake_up"] = GoldenTokensDiffer("other")
    with pytest.raises(GoldenTokensDiffer):
        rank.wake_up()
    assert rank.teller.status.state is State.WAKING


def test_it_says_what_sleeps(rank):
    rank.sleep(2, (KV_CACHE,))
    assert repr(rank.parts) == "SleepingParts(SleepState(levels={'kv_cache': 2}))"
    assert repr(rank.teller) == "StatusTeller(ASLEEP)"
