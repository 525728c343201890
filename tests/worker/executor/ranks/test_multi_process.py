"""A group of real rank processes with workers that compute without torch: they agree, serve, sleep and wake as one."""

from __future__ import annotations

import os
import signal

import pytest

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import (
    InsufficientMemory,
    InvalidArgument,
    RankHung,
    RankLost,
    RanksDisagree,
)
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_add, make_sampling
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.executor.testing_ranks import group_settings
from tests.worker.executor.ranks.group_processes import Groups, check_for_ever, facts, is_alive, tokens_of


@pytest.fixture
def groups(tmp_path):
    groups = Groups(tmp_path / "model")
    yield groups
    for executor in groups.made:
        pids = list(executor.local.pids.values())
        executor.shutdown()
        assert not [pid for pid in pids if is_alive(pid)], "no orphans"


def test_ranks_know_their_place_before_anything_heavy_is_imported(groups):
    executor = groups.start(tensor=2)
    first, second = (fact["variables"] for fact in facts(executor))
    assert (first["RANK"], first["LOCAL_RANK"], first["WORLD_SIZE"]) == ("0", "0", "2")
    assert (second["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("1", "1", "2")
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != ""
    assert first["GLOO_SOCKET_IFNAME"] == "lo"


def test_the_minimum_over_ranks_holds_for_all_and_every_report_is_told(groups):
    executor = groups.make(rank1={"report": {"num_gpu_blocks": 7}}, rank0={"report": {"num_cpu_blocks": 1}})
    executor.init_device()
    executor.load_model()
    assert executor.determine_num_available_blocks() == (7, 1)
    report = executor.get_memory_report()
    assert (report.rank, report.num_gpu_blocks, report.num_cpu_blocks) == (1, 7, 1)
    assert [(status.rank, status.report.num_gpu_blocks) for status in executor.get_rank_statuses()] == [(0, 10), (1, 7)]
    assert executor.get_model_info().load_bytes == 10


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"report": {"block_size": 8}}, r"rank 1.*: its block size is 8, that of rank 0.* is 4"),
        ({"report": {"max_model_len": 16}}, r"rank 1.*: its model length is 16"),
    ],
)
def test_ranks_whose_blocks_are_not_alike_are_refused_by_name(groups, order, words):
    executor = groups.make(rank1=order)
    executor.init_device()
    executor.load_model()
    with pytest.raises(RanksDisagree, match=words):
        executor.determine_num_available_blocks()


def test_ranks_of_another_dtype_or_other_layers_are_refused_by_name(groups):
    executor = groups.start(rank1={"dtype": "bfloat16", "windows": [8]})
    with pytest.raises(RanksDisagree, match=r"rank 1.*: its dtype is bfloat16, that of rank 0.* is float32"):
        executor.get_model_info()
    with pytest.raises(RanksDisagree, match=r"rank 1.*: its layer groups is \(8,\)"):
        executor.layer_windows()


def test_a_groups_tokens_are_those_of_one_worker_and_every_rank_hears_of_them(groups):
    """Several requests, longer than one pass; the fake ranks raise at a token that they were not told of."""
    requests = [make_add("a", range(5), max_tokens=9), make_add("b", range(11, 14), max_tokens=5)]
    group = groups.start(tensor=3)
    alone = FakeExecutor()
    alone.determine_num_available_blocks()
    assert tokens_of(group, *requests) == tokens_of(alone, *requests)


@pytest.mark.parametrize("stages", [2, 3])
def test_with_several_batches_under_way_the_tokens_are_the_same(groups, stages):
    requests = [make_add(name, range(n, n + 3), max_tokens=6) for n, name in enumerate("abcd")]
    group = groups.start()
    alone = FakeExecutor()
    alone.determine_num_available_blocks()
    assert tokens_of(group, *requests, stages=stages) == tokens_of(alone, *requests)


def test_a_rank_goes_on_to_the_next_batch_while_another_is_at_the_first(groups):
    """The second rank never ends; the first has taken both batches, and says so."""
    executor = groups.start(rank_timeout_s=3.0)
    groups.order(rank1={"hang": ["execute_model"]})
    batches = [single(NewSequence(name, [1, 2], [], make_sampling()), ([number],)) for number, name in enumerate("ab")]
    first, _ = [executor.submit(batch) for batch in batches]
    with pytest.raises(RankHung, match="rank 1"):
        first()
    assert [rank for _, rank in executor._ready().group._answers] == [0, 0]
    executor.abandon()


def test_a_batch_that_all_ranks_refuse_costs_only_its_requests(groups):
    executor = groups.start()
    groups.order(rank0={"refuse": ["execute_model"]}, rank1={"refuse": ["execute_model"]})
    engine = build_engine(
        group_settings("/nowhere"), executor.get_memory_report(), (10, 0), executor, clock=lambda: 0.0
    )
    engine.add(make_add("a"))
    assert "rank 0" in engine.step().failed["a"]
    groups.order()
    assert len(tokens_of(executor, make_add("b", max_tokens=4))["b"]) == 4


def test_a_batch_that_one_rank_fails_breaks_the_group_and_names_the_rank(groups):
    executor = groups.start()
    groups.order(rank1={"crash": ["execute_model"]})
    with pytest.raises(RanksDisagree, match=r"rank 1.*KeyError.*others succeeded"):
        tokens_of(executor, make_add("a"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_in_a_batch_is_named(groups, rank):
    executor = groups.start()
    groups.order(**{f"rank{rank}": {"die": ["execute_model"]}, f"rank{1 - rank}": {"hang": ["execute_model"]}})
    with pytest.raises(RankLost, match=rf"rank {rank}"):
        tokens_of(executor, make_add("a"))
    executor.abandon()


def test_a_rank_that_dies_while_nothing_runs_is_noticed(groups):
    executor = groups.start()
    os.kill(executor.local.pids[1], signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1"):
        check_for_ever(executor)


def test_a_batch_that_one_rank_never_ends_breaks_the_group_at_the_deadline(groups):
    executor = groups.start(rank_timeout_s=3.0)
    groups.order(rank1={"hang": ["execute_model"]})
    with pytest.raises(RankHung, match=r"rank 1.*: no answer to a batch within 3"):
        tokens_of(executor, make_add("a"))
    executor.abandon()


def test_a_stopped_rank_is_told_from_those_that_wait_for_it(groups):
    """Rank 0 waits in a collective, as it were, and shows signs of life; rank 1 shows none."""
    executor = groups.start(rank_timeout_s=3.0)
    groups.order(rank0={"hang": ["check_health"]})
    os.kill(executor.local.pids[1], signal.SIGSTOP)
    with pytest.raises(RankHung, match=r"^rank 1[^,]*: no sign of life for 3 s"):
        executor.check_health()
    executor.abandon()


def test_every_rank_verifies_and_what_was_sampled_before_is_told_to_none(groups):
    executor = groups.start()
    tokens_of(executor, make_add("a"))
    executor.verify()
    assert len(tokens_of(executor, make_add("a"))["a"]) == 4
    groups.order(rank1={"refuse": ["verify"]})
    with pytest.raises(InsufficientMemory, match=r"rank 1.*: verify shall be refused"):
        executor.verify()


def test_all_sleep_and_wake_and_their_bytes_are_added(groups):
    executor = groups.start()
    report = executor.sleep(2, TAGS)
    assert (report.freed_bytes, report.residual_bytes, report.host_copy_bytes) == (200, 21, 2)
    assert report.phases == {"drop": 1.0}
    assert [fact["asleep"] for fact in facts(executor)] == [sorted(TAGS)] * 2
    assert executor.wake_up(TAGS).phases == {"verify": 1.0}
    assert [fact["asleep"] for fact in facts(executor)] == [[], []]
    assert len(tokens_of(executor, make_add("a", max_tokens=3))["a"]) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_rank_refuses_to_sleep_all_are_awake(groups, rank):
    executor = groups.start()
    groups.order(**{f"rank{rank}": {"refuse": ["sleep"]}})
    with pytest.raises(InsufficientMemory, match=rf"^rank {rank}.*sleep shall be refused"):
        executor.sleep(1, TAGS)
    assert [fact["asleep"] for fact in facts(executor)] == [[], []]


@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_rank_refuses_to_wake_all_sleep_as_before(groups, rank):
    executor = groups.start()
    executor.sleep(2, TAGS)
    groups.order(**{f"rank{rank}": {"refuse": ["wake_up"]}})
    with pytest.raises(InsufficientMemory, match=rf"^rank {rank}.*wake_up shall be refused"):
        executor.wake_up(TAGS)
    assert [fact["asleep"] for fact in facts(executor)] == [sorted(TAGS)] * 2
    groups.order()
    executor.wake_up(TAGS)
    assert [fact["asleep"] for fact in facts(executor)] == [[], []]


def test_a_wake_is_reserved_on_every_rank_or_on_none(groups):
    executor = groups.start()
    executor.sleep(2, TAGS)
    groups.order(rank1={"missing_bytes": 123})
    assert executor.prepare_wake_up(TAGS) == 123
    assert [fact["reserved"] for fact in facts(executor)] == [[], []]
    with pytest.raises(InsufficientMemory, match="123 bytes"):
        executor.wake_up(TAGS)
    assert [fact["asleep"] for fact in facts(executor)] == [sorted(TAGS)] * 2


def test_a_rank_that_can_not_go_back_breaks_the_group(groups):
    """Nobody would know what is awake."""
    executor = groups.start()
    groups.order(rank0={"refuse": ["undo_sleep"]}, rank1={"refuse": ["sleep"]})
    with pytest.raises(RanksDisagree, match=r"rank 0.*: cannot go back by undo_sleep"):
        executor.sleep(1, TAGS)


@pytest.mark.parametrize("verb", ["sleep", "prepare_wake_up", "wake_up"])
def test_a_rank_that_dies_while_it_falls_asleep_or_wakes_breaks_the_group_and_is_named(groups, verb):
    """Nothing is half awake: what is left of the group ends with it."""
    executor = groups.start()
    if verb != "sleep":
        executor.sleep(2, TAGS)
    groups.order(rank1={"die": [verb]})
    with pytest.raises(RankLost, match=r"^rank 1: its process"):
        executor.sleep(2, TAGS) if verb == "sleep" else executor.wake_up(TAGS)


def test_an_answer_that_no_message_can_carry_is_refused(groups):
    executor = groups.start()
    with pytest.raises(InvalidArgument, match=r"rank 0.*'something_unsayable', whose answer cannot be sent"):
        executor.collective_rpc("something_unsayable")
    with pytest.raises(InvalidArgument, match=r"'nothing', which FakeRankWorker does not have"):
        executor.collective_rpc("nothing")


def test_every_rank_saves_its_own_part(groups, tmp_path):
    groups.start(tensor=2).save_sharded_state(str(tmp_path))
    assert sorted(file.name for file in tmp_path.glob("rank*")) == ["rank0", "rank1"]
