"""Reports of several ranks count as one: all must be there and alike, and the least holds for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide import block_agreement, ranks
from dormouse_operator.decide.conditions import memory_profiled
from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.settled_workers import worker_at_rest
from dormouse_operator.decide.status import ranks_of
from dormouse_operator.model import Container, Group, KvCache, Parallelism, Rank, RecordedStatus, WorkerState
from dormouse_operator.testing.nouns import a_deployment, a_pod, a_report, a_situation, a_worker

LEADER = a_pod(num_ranks=4, group_size=2)
FOLLOWER = a_pod(name=f"{LEADER.name}-1", uid="uid-f", ordinal=1, num_ranks=4, group_size=2, leader_uid=LEADER.uid)
GROUP = Group(LEADER, (FOLLOWER,))
SHARED = Parallelism(tensor=2, pipeline=2)


def reporting(*counts, **fields):
    """Return a leader's worker that tells of ranks with these blocks; None = that rank has not reported."""
    reports = [a_report(count, rank=rank) for rank, count in enumerate(counts) if count is not None]
    return a_worker(WorkerState.PROFILED, report=reports[0], rank_reports=tuple(reports), **fields)


def seen(worker):
    deployment = a_deployment(parallelism=SHARED)
    return a_situation(worker, deployment=deployment, pods=(LEADER,), followers={LEADER.uid: (FOLLOWER,)})


def test_the_least_of_the_ranks_holds_and_is_named_with_its_pod():
    agreement = block_agreement.blocks_of(seen(reporting(2000, 1900, 1500, 1800))).agreement
    assert agreement.num_gpu_blocks == 1500
    assert f"{agreement.limiting_pod}/{agreement.limiting_rank}" == f"{FOLLOWER.name}/2"
    assert str(agreement) == f"1500, as rank 2 (pod {FOLLOWER.name}) reported"


def test_a_replica_with_one_rank_is_named_by_its_pod():
    assert str(block_agreement.blocks_of(a_situation(a_worker())).agreement) == "2000, as pod tiny-abcd1234-0 reported"


@given(st.lists(st.integers(1, 5000), min_size=4, max_size=4), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_no_rank_is_given_more_than_it_reported(on_device, on_host):
    reports = tuple(a_report(count, rank=rank, num_cpu_blocks=on_host[rank]) for rank, count in enumerate(on_device))
    agreement = block_agreement.blocks_of(
        seen(a_worker(WorkerState.PROFILED, report=reports[0], rank_reports=reports[::-1]))
    ).agreement
    assert agreement.num_gpu_blocks == min(on_device)
    assert agreement.num_cpu_blocks == min(on_host)
    assert on_device[agreement.limiting_rank] == min(on_device)


FLAWS = {
    "missing": (
        reporting(1, None, 1, None),
        ("RankMissing", f"2 of 4 ranks have not reported: rank 1 (pod {LEADER.name}), rank 3 (pod {FOLLOWER.name})"),
    ),
    "one too many": (
        reporting(1, 1, 1, 1, 1),
        ("ReportOutOfBounds", "rank 4 is reported 1 times; ranks are 0 to 3"),
    ),
    "twice": (
        replace(reporting(1, 1, 1, 1), rank_reports=tuple(a_report(1, rank=rank) for rank in (0, 1, 2, 3, 2))),
        ("ReportOutOfBounds", "rank 2 is reported 2 times; ranks are 0 to 3"),
    ),
    "other blocks": (
        replace(
            reporting(1, 1, 1, 1),
            rank_reports=tuple(a_report(1, rank=rank, block_size=32 if rank == 3 else 16) for rank in range(4)),
        ),
        (
            "BlockSizeDiffers",
            f"rank 3 (pod {FOLLOWER.name}) reports blocks of 32 tokens, rank 0 (pod {LEADER.name}) of 16",
        ),
    ),
    "impossible": (
        reporting(1, 1, -1, 1),
        ("ReportOutOfBounds", f"rank 2 (pod {FOLLOWER.name}): numGpuBlocks is -1; possible are 0 to 2147483647"),
    ),
}


@pytest.mark.parametrize(("worker", "flaw"), FLAWS.values(), ids=FLAWS)
def test_what_is_wrong_with_the_ranks_is_told_and_nothing_is_agreed(worker, flaw):
    assert ranks.flaw_of(GROUP, worker) == flaw
    found = find(seen(worker))
    assert found.blocks.agreement is None
    condition = evaluate_all(seen(worker), found)[memory_profiled.TYPE]
    assert (condition.reason, condition.message) == (flaw[0], f"pod {LEADER.name}: {flaw[1]}")
    assert condition.is_failure


def test_a_rank_without_room_for_a_block_is_named():
    least = seen(reporting(5, 5, 5, 0))
    condition = evaluate_all(least, find(least))[memory_profiled.TYPE]
    assert condition.reason == "InsufficientMemory"
    assert condition.message.startswith(f"rank 3 (pod {FOLLOWER.name}) reports 0 blocks")


def test_a_replica_keeps_a_cache_where_one_of_its_ranks_does():
    """A rank whose report has no bytes does not make 0 blocks right for the others."""
    reports = (*reporting(5, 5, 5).rank_reports, a_report(0, rank=3, has_cache=False))
    odd = seen(replace(reporting(5, 5, 5, 0), rank_reports=reports))
    assert find(odd).blocks.agreement is None
    assert evaluate_all(odd, find(odd))[memory_profiled.TYPE].reason == "InsufficientMemory"


def test_nothing_is_wrong_with_ranks_that_agree_nor_before_they_report():
    assert ranks.flaw_of(GROUP, reporting(1, 2, 3, 4)) is None
    assert ranks.flaw_of(GROUP, a_worker(WorkerState.LOADING)) is None
    assert ranks.whole(a_worker(WorkerState.LOADING)) is None


def test_the_status_lists_every_rank_with_its_pod():
    worker = reporting(2000, 1900, 1500, 1800, residual_bytes=7)
    asleep = seen(replace(worker, state=WorkerState.ASLEEP, sleep_level=1))
    listed = ranks_of(asleep, block_agreement.blocks_of(asleep))
    assert [(rank.rank, rank.pod, rank.num_gpu_blocks) for rank in listed] == [
        (0, LEADER.name, 2000),
        (1, LEADER.name, 1900),
        (2, FOLLOWER.name, 1500),
        (3, FOLLOWER.name, 1800),
    ]
    assert [rank.residual_bytes for rank in listed] == [7, 0, 0, 0]


def test_a_group_at_rest_is_known_from_the_status_only_with_all_its_ranks():
    names = [LEADER.name, LEADER.name, FOLLOWER.name, FOLLOWER.name]
    written = tuple(Rank(rank, name, 1000 + rank, 0, 1000) for rank, name in enumerate(names))
    whole = a_deployment(parallelism=SHARED, recorded=RecordedStatus(kv_cache=KvCache(16, 1000, 0, "", written)))
    worker = worker_at_rest(whole, LEADER)
    assert [report.num_gpu_blocks for report in worker.rank_reports] == [1000, 1001, 1002, 1003]
    partly = a_deployment(recorded=RecordedStatus(kv_cache=KvCache(16, 1000, 0, "", written[:3])))
    assert worker_at_rest(partly, LEADER) is None


def test_a_follower_is_spoken_of_with_its_ranks():
    assert GROUP.ranks_of(FOLLOWER) == "ranks 2 to 3"
    assert Group(replace(LEADER, num_ranks=2)).ranks_of(FOLLOWER) == "rank 1"
    looping = replace(FOLLOWER, container=Container(waiting_reason="CrashLoopBackOff"))
    assert Group(LEADER, (looping,)).looping is looping
    assert GROUP.looping is None
