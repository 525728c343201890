"""What every replica holds: the minimum, when a report counts, what a later report changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide import block_agreement, ranks
from dormouse_operator.decide.conditions import blocks_agreed
from dormouse_operator.model import Rank, RecordedStatus, WorkerState
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_report, a_situation, a_worker, but, recorded

PROFILED, READY, LOADING, FAILED = (
    WorkerState.PROFILED,
    WorkerState.READY,
    WorkerState.LOADING,
    WorkerState.FAILED,
)


def holding(count, *workers):
    """Return what is seen when `count` stands in the status as agreed."""
    return a_situation(*workers, deployment=a_deployment(replicas=len(workers), recorded=recorded(count)))


def agreed(seen):
    """Return the count, None if there is none."""
    agreement = block_agreement.blocks_of(seen).agreement
    return agreement.num_gpu_blocks if agreement else None


@given(st.lists(st.integers(1, ranks.MAX_BLOCKS), min_size=1, max_size=8))
def test_the_first_agreement_is_the_minimum_of_all_reports(counts):
    seen = a_situation(*(a_worker(PROFILED, blocks=count) for count in counts))
    agreement = block_agreement.blocks_of(seen).agreement
    assert agreement.num_gpu_blocks == min(counts)
    assert agreement.reported == tuple(counts)
    assert agreement.limiting_pod == seen.pods[counts.index(min(counts))].name
    assert agreement.limiting_rank == 0


def test_cpu_blocks_are_the_minimum_too():
    reports = [a_report(2000, num_cpu_blocks=count) for count in (30, 10, 20)]
    seen = a_situation(*(a_worker(PROFILED, report=report) for report in reports))
    assert block_agreement.blocks_of(seen).agreement.num_cpu_blocks == 10


def test_without_any_report_nothing_is_agreed():
    assert block_agreement.blocks_of(a_situation(None, a_worker(LOADING))).agreement is None


@pytest.mark.parametrize(
    ("report", "flaw"),
    [
        (a_report(-1), "numGpuBlocks is -1; possible are 0 to 2147483647"),
        (a_report(2**31), "numGpuBlocks is 2147483648; possible are 0 to 2147483647"),
        (a_report(1, num_cpu_blocks=-1), "numCpuBlocks is -1; possible are 0 to 2147483647"),
        (a_report(1, num_cpu_blocks=2**31), "numCpuBlocks is 2147483648; possible are 0 to 2147483647"),
        (a_report(1, block_size=0), "blockSize is 0; possible is 1 token or more"),
        (a_report(11, block_bytes=10, total_bytes=109), "11 blocks need 110 bytes; the device has 109"),
        (a_report(11, block_bytes=10, total_bytes=110), ""),
        (a_report(2, block_bytes=1, total_bytes=1), "2 blocks need 2 bytes; the device has 1"),
        (a_report(11, block_bytes=10, total_bytes=0), ""),
        (a_report(2**31 - 1, num_cpu_blocks=2**31 - 1, block_size=1), ""),
        (a_report(0), ""),
    ],
)
def test_a_number_that_is_impossible_is_named_with_its_limit(report, flaw):
    assert ranks.impossible(report) == flaw


def test_a_report_with_an_impossible_number_does_not_count_and_the_others_go_on():
    seen = holding(2000, a_worker(READY), a_worker(PROFILED, report=a_report(-5)))
    assert agreed(seen) == 2000
    assert not block_agreement.blocks_of(seen).counts(seen.pods[1])


def test_a_report_of_no_blocks_and_one_of_a_failed_worker_do_not_count():
    seen = a_situation(a_worker(PROFILED, blocks=0), a_worker(FAILED, blocks=5), a_worker(PROFILED, blocks=7))
    assert block_agreement.blocks_of(seen).reports == ((seen.pods[2], seen.workers[seen.pods[2].name].report),)


def test_blocks_of_another_size_than_those_that_are_held_do_not_count():
    newcomers = [a_worker(PROFILED, report=a_report(100, block_size=32)) for _ in range(2)]
    seen = holding(2000, a_worker(READY), *newcomers)
    assert (agreed(seen), block_agreement.blocks_of(seen).agreement.block_size) == (2000, 16)
    assert block_agreement.blocks_of(seen).counts(seen.pods[0])
    assert not block_agreement.blocks_of(seen).counts(seen.pods[1])


def test_among_newcomers_the_size_of_most_counts_and_the_lowest_index_in_a_tie():
    small, large = a_worker(PROFILED, report=a_report(100, block_size=32)), a_worker(PROFILED, blocks=50)
    assert block_agreement.blocks_of(a_situation(large, small, small)).kind.block_size == 32
    assert block_agreement.blocks_of(a_situation(large, small)).kind.block_size == 16


def test_the_first_agreement_waits_for_who_has_a_node_but_only_so_long():
    waiting = recorded(0, BlocksAgreed=("False", block_agreement.WAITING_FOR_REPORTS))
    seen = a_situation(a_worker(PROFILED), None, deployment=a_deployment(replicas=2))
    assert agreed(seen) is None
    begun = but(seen, deployment=a_deployment(replicas=2, recorded=waiting))
    ends = NOW - timedelta(hours=1) + timedelta(seconds=10)
    assert block_agreement.waiting_ends(begun) == ends
    assert agreed(but(begun, now=ends - timedelta(seconds=0.001))) is None
    assert agreed(but(begun, now=ends)) == 2000


def test_only_a_recorded_wait_has_an_end():
    waited = recorded(0, BlocksAgreed=("False", "Other"))
    assert block_agreement.waiting_ends(a_situation(None, deployment=a_deployment(recorded=waited))) is None
    begun = recorded(0, BlocksAgreed=("False", block_agreement.WAITING_FOR_REPORTS)).conditions["BlocksAgreed"]
    timeless = RecordedStatus(conditions={"BlocksAgreed": replace(begun, since=None)})
    assert block_agreement.waiting_ends(a_situation(None, deployment=a_deployment(recorded=timeless))) is None


def test_who_has_no_node_or_has_failed_is_not_waited_for():
    pods = (a_pod(0), a_pod(1, is_scheduled=False), a_pod(2))
    seen = a_situation(a_worker(PROFILED), None, a_worker(FAILED, report=None), pods=pods)
    assert block_agreement.blocks_of(seen).missing == ()
    assert agreed(seen) == 2000


def test_once_somebody_holds_a_cache_nobody_is_waited_for():
    assert agreed(holding(2000, a_worker(READY), None)) == 2000
    assert agreed(a_situation(a_worker(READY, blocks=1), None)) == 1


def test_a_smaller_report_lowers_the_agreement():
    assert agreed(holding(2000, a_worker(READY), a_worker(PROFILED, blocks=1500))) == 1500


@pytest.mark.parametrize(("least", "count"), [(2199, 2000), (2200, 2200), (4000, 4000)])
def test_larger_reports_raise_the_agreement_if_all_can_follow_and_it_is_worth_a_tenth(least, count):
    workers = [a_worker(READY, report=a_report(least + extra)) for extra in (0, 500)]
    assert agreed(holding(2000, *workers)) == count
    assert agreed(holding(2000, *workers, None)) == 2000, "one of them may not be able to follow"


def test_while_the_count_is_raised_the_first_to_follow_changes_nothing():
    first = a_worker(READY, report=a_report(3000), num_gpu_blocks=3000)
    second = a_worker(READY, report=a_report(3000), num_gpu_blocks=2000)
    assert agreed(holding(3000, first, second)) == 3000
    assert agreed(holding(3000, first, second, None)) == 3000, "what was agreed stands"


def test_without_a_recorded_count_the_least_that_is_held_counts():
    workers = [a_worker(READY, report=a_report(2100), num_gpu_blocks=count) for count in (2050, 2000)]
    assert agreed(a_situation(*workers)) == 2000


def test_a_recorded_count_that_nobody_holds_binds_nobody():
    assert agreed(holding(1000, a_worker(PROFILED))) == 2000


def test_who_sleeps_still_holds_its_count():
    rank = Rank(rank=0, pod=a_pod(0).name, num_gpu_blocks=2000, num_cpu_blocks=0, allocated_gpu_blocks=2000)
    status = recorded(2000, rank)
    workers = [a_worker(WorkerState.ASLEEP), a_worker(PROFILED, blocks=2100)]
    assert agreed(a_situation(*workers, deployment=a_deployment(replicas=2, recorded=status))) == 2000


@pytest.mark.parametrize(
    ("held", "counts", "words"),
    [
        (0, [7], "7, as pod tiny-abcd1234-0 reported"),
        (0, [9, 7], "7, the minimum of [9, 7], limited by pod tiny-abcd1234-1"),
        (100, [105], "100, as allocated already; reported are [105]"),
    ],
)
def test_the_sentence_names_the_reports_and_who_limits(held, counts, words):
    state = READY if held else PROFILED
    workers = [a_worker(state, report=a_report(count), num_gpu_blocks=held) for count in counts]
    assert str(block_agreement.blocks_of(holding(held, *workers)).agreement) == words


NO_CACHE = a_report(0, has_cache=False)


def without_cache(state):
    return a_worker(state, report=NO_CACHE, num_gpu_blocks=0)


def test_models_that_keep_no_cache_agree_on_0_blocks():
    agreement = block_agreement.blocks_of(a_situation(without_cache(PROFILED), without_cache(PROFILED))).agreement
    assert (agreement.num_gpu_blocks, agreement.reported) == (0, (0, 0))
    assert str(agreement) == "0, as the model keeps no cache"


def test_0_blocks_of_a_model_that_keeps_a_cache_never_count():
    assert agreed(a_situation(a_worker(PROFILED, blocks=0))) is None
    mixed = a_situation(a_worker(PROFILED, blocks=0), without_cache(PROFILED))
    assert not block_agreement.blocks_of(mixed).counts(mixed.pods[0])


@pytest.mark.parametrize("state", [READY, WorkerState.DRAINING, WorkerState.ASLEEP, WorkerState.WAKING])
def test_who_is_past_its_start_without_a_cache_waits_for_no_newcomer_and_decides_the_kind(state):
    assert agreed(a_situation(without_cache(state), None)) == 0
    assert agreed(a_situation(without_cache(PROFILED), None)) is None
    seen = a_situation(a_worker(PROFILED), a_worker(PROFILED), without_cache(state))
    assert block_agreement.blocks_of(seen).kind == (16, False)


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ((a_worker(READY), without_cache(PROFILED)), "keeps no cache, the others one"),
        ((without_cache(READY), a_worker(PROFILED)), "keeps a cache, the others none"),
    ],
)
def test_a_replica_of_the_other_kind_does_not_count_and_is_named(workers, words):
    seen = a_situation(*workers)
    blocks = block_agreement.blocks_of(seen)
    assert not blocks.counts(seen.pods[1])
    condition = blocks_agreed.evaluate(seen, blocks)
    assert (condition.reason, condition.is_failure) == ("CacheDiffers", True)
    assert condition.message == f"pod {seen.pods[1].name} has a model that {words}"
