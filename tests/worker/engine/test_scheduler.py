"""The scheduler: who runs, in which chunks, by whose leave."""

import pytest

from dormouse_worker.engine.admission import Admission
from dormouse_worker.engine.holdings import Holdings
from dormouse_worker.engine.queues import Queues
from tests.worker.engine.scheduler_kit import add, commit, make_scheduler, step


def test_nothing_to_do_is_no_batch():
    assert make_scheduler().schedule() is None


def test_a_prompt_is_computed_whole_and_then_token_by_token():
    scheduler = make_scheduler()
    add(scheduler, "a", 3)
    assert [step(scheduler) for _ in range(2)] == [{"a": (0, 3, True)}, {"a": (3, 4, True)}]


def test_a_prompt_over_the_budget_is_cut_and_only_its_last_chunk_samples():
    scheduler = make_scheduler(tokens=8)
    add(scheduler, "a", 12)
    assert [step(scheduler) for _ in range(3)] == [{"a": (0, 8, False)}, {"a": (8, 12, True)}, {"a": (12, 13, True)}]


def test_decoding_and_a_chunk_of_a_prompt_share_one_pass():
    scheduler = make_scheduler(tokens=8)
    add(scheduler, "a", 3)
    step(scheduler)
    add(scheduler, "b", 12)
    assert step(scheduler) == {"a": (3, 4, True), "b": (0, 7, False)}


def test_a_spent_budget_admits_nobody():
    scheduler = make_scheduler(tokens=4)
    add(scheduler, "a", 4)
    add(scheduler, "b", 4)
    assert step(scheduler) == {"a": (0, 4, True)}
    assert repr(scheduler) == (
        "Scheduler(running=1, waiting=1, BlockTables(1 sequences, BlockPool(total=10, free=9, cached=0, used=1)), "
        "SwapSpace(total=0, free=0, sequences=0))"
    )


def test_a_budget_below_the_running_sequences_serves_the_oldest():
    scheduler = make_scheduler(tokens=2, seqs=3)
    for name in "abc":
        add(scheduler, name, 1, max_tokens=9)
    step(scheduler)
    assert step(scheduler) == {"a": (1, 2, True), "b": (1, 2, True)}


def test_no_more_sequences_run_than_allowed():
    scheduler = make_scheduler(seqs=2)
    for name in "abc":
        add(scheduler, name, 1)
    assert set(step(scheduler)) == {"a", "b"}


def test_the_head_of_the_queue_is_not_overtaken_by_a_smaller_request():
    scheduler = make_scheduler(num_blocks=4, tokens=16)
    add(scheduler, "a", 9)
    step(scheduler)
    add(scheduler, "big", 8)
    add(scheduler, "small", 1)
    assert set(step(scheduler)) == {"a"}


def test_the_first_schedule_is_timed_once():
    scheduler = make_scheduler(num_blocks=4, tokens=16)
    add(scheduler, "old", 8, max_tokens=9)
    scheduler._admission._clock.now_s = 5.0
    young = add(scheduler, "young", 8, max_tokens=9)
    step(scheduler)
    step(scheduler)
    assert scheduler.counters.preemptions == 1
    scheduler.remove("old")
    scheduler._admission._clock.now_s = 9.0
    assert step(scheduler) == {"young": (0, 9, True)}
    assert young.first_scheduled_s == 5.0


def test_a_complete_request_is_told_and_freed():
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=1)
    (progress,) = commit(scheduler, scheduler.schedule())
    assert (progress.request.output_token_ids, progress.finish_reason) == ([5], "length")
    assert (scheduler.has_work, scheduler.tables.pool.num_used) == (False, 0)


def test_running_and_waiting_requests_can_be_removed_at_any_time():
    scheduler = make_scheduler(seqs=1)
    add(scheduler, "a")
    add(scheduler, "b")
    step(scheduler)
    assert [scheduler.remove(name) for name in ("b", "a", "a")] == [True, True, False]
    assert (scheduler.has_work, scheduler.tables.pool.num_used) == (False, 0)


def test_the_ranks_are_told_whom_they_may_forget():
    scheduler = make_scheduler()
    add(scheduler, "a")
    add(scheduler, "b")
    step(scheduler)
    scheduler.remove("a")
    assert scheduler.schedule().released == ("a",)


@pytest.mark.parametrize("limits", [{"seqs": 0}, {"tokens": 0}, {"max_model_len": 0}])
def test_limits_leave_room_for_something(limits):
    with pytest.raises(AssertionError):
        make_scheduler(**limits)


def test_a_prompt_leaves_room_for_a_token():
    scheduler = make_scheduler(max_model_len=16)
    add(scheduler, "fits", 15)
    with pytest.raises(AssertionError):
        add(scheduler, "too long", 16)


def test_an_id_may_come_back_only_after_its_end():
    scheduler = make_scheduler()
    add(scheduler, "a")
    with pytest.raises(AssertionError):
        add(scheduler, "a")


def test_a_cache_too_small_for_the_longest_sequence_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match=r"^the longest sequence must fit alone"):
        make_scheduler(num_blocks=3, max_model_len=16)


def test_lost_and_forgotten_blocks_are_found():
    scheduler = make_scheduler()
    scheduler.tables.pool.allocate(1)
    with pytest.raises(RuntimeError, match="blocks are wrong"):
        scheduler.check_integrity()
    scheduler = make_scheduler(host_blocks=2)
    add(scheduler, "a")
    step(scheduler)
    scheduler._queues.by_id.clear()
    with pytest.raises(RuntimeError, match="1 blocks are held though no request is left"):
        scheduler.check_integrity()


class TestPriorities:
    """Lower goes first, whenever it came."""

    def test_a_lower_number_goes_first(self):
        scheduler = make_scheduler(seqs=1)
        add(scheduler, "later", 1, priority=1, max_tokens=1)
        add(scheduler, "first", 1, priority=-1, max_tokens=1)
        add(scheduler, "between", 1, max_tokens=1)
        assert [set(step(scheduler)) for _ in range(3)] == [{"first"}, {"between"}, {"later"}]

    def test_the_last_in_line_is_preempted_though_it_came_first(self):
        scheduler = make_scheduler(num_blocks=4, tokens=16)
        add(scheduler, "humble", 7, priority=1, max_tokens=9)
        step(scheduler)
        add(scheduler, "urgent", 7, max_tokens=9)
        step(scheduler)
        assert set(step(scheduler)) == {"urgent"}
        assert scheduler.request_ids == ["urgent", "humble"]

    def test_a_running_sequence_comes_before_others_by_its_place_in_line(self):
        scheduler = make_scheduler(tokens=2)
        add(scheduler, "humble", 1, priority=1)
        step(scheduler)
        add(scheduler, "urgent", 1)
        assert list(step(scheduler)) == ["humble", "urgent"]
        assert list(step(scheduler)) == ["urgent", "humble"]


class TestWindows:
    """Layers with a window hold the window only."""

    def test_a_long_prompt_in_chunks_holds_the_window_and_its_chunk(self):
        scheduler = make_scheduler(num_blocks=9, tokens=4, max_model_len=40, windows=(6,))
        add(scheduler, "a", 38, max_tokens=2)
        while scheduler.has_work:
            step(scheduler)
            assert scheduler.tables.pool.num_used <= 4
        scheduler.check_integrity()


def test_queues_and_who_is_admitted_from_them_say_what_there_is():
    admission = Admission(Queues(), None, None, max_num_seqs=4, clock=None)
    assert repr(admission) == "Admission(Queues(running=0, waiting=0), 4 places)"
    holdings = Holdings(Queues(), "nothing placed", None, adapters=None, images=None)
    assert repr(holdings) == "Holdings(Queues(running=0, waiting=0), 'nothing placed')"
