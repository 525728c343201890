"""The scheduler: who runs, in which chunks, who is preempted, what is shared."""

import pytest

from dormouse_worker.engine.batch import SampledToken
from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import BlockTables, CacheLayout
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.scheduler import Limits, Scheduler
from dormouse_worker.engine.swap import SwapSpace
from dormouse_worker.engine.testing import ManualClock, make_sampling


def make_scheduler(
    num_blocks=10, block_size=4, *, seqs=4, tokens=8, max_model_len=16, host_blocks=0, windows=(None,), caches=False
):
    tables = BlockTables(BlockPool(num_blocks), CacheLayout(block_size, windows))
    limits = Limits(seqs, tokens, max_model_len, caches_prefixes=caches)
    return Scheduler(tables, SwapSpace(host_blocks), limits, ManualClock())


def add(scheduler, request_id, num_tokens=3, *, priority=0, salt="", **sampling):
    request = Request(
        request_id,
        list(range(num_tokens)),
        make_sampling(**sampling),
        arrival_s=0.0,
        priority=priority,
        cache_salt=salt,
    )
    scheduler.add(request)
    return request


def commit(scheduler, batch, token=5):
    return scheduler.commit(batch, [SampledToken(s.request_id, token) for s in batch.sequences if s.samples])


def step(scheduler):
    """Run one pass; return its spans as {id: (start, end, samples)}."""
    batch = scheduler.schedule()
    commit(scheduler, batch)
    return {s.request_id: (s.start, s.end, s.samples) for s in batch.sequences}


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


def test_without_a_free_block_the_youngest_is_preempted_and_computed_anew_with_its_output():
    scheduler = make_scheduler(num_blocks=4, tokens=16)
    add(scheduler, "old", 7, max_tokens=9)
    young = add(scheduler, "young", 7, max_tokens=9)
    step(scheduler)
    step(scheduler)
    assert scheduler.tables.pool.num_available == 0
    assert step(scheduler) == {"old": (8, 9, True)}
    assert (young.num_computed_tokens, young.num_pending_tokens) == (0, 9)
    assert (scheduler.counters.preemptions, scheduler.num_running, scheduler.num_waiting) == (1, 1, 1)
    scheduler.remove("old")
    assert step(scheduler) == {"young": (0, 9, True)}


def test_the_youngest_that_needs_a_block_preempts_itself():
    scheduler = make_scheduler(num_blocks=4, tokens=16)
    add(scheduler, "old", 8, max_tokens=9)
    add(scheduler, "young", 8, max_tokens=9)
    step(scheduler)
    assert step(scheduler) == {"old": (8, 9, True)}
    assert step(scheduler) == {"old": (9, 10, True)}
    assert scheduler.request_ids == ["old", "young"]


def test_a_preempted_sequence_stands_before_those_that_never_ran():
    scheduler = make_scheduler(num_blocks=4, tokens=16)
    add(scheduler, "old", 8, max_tokens=9)
    add(scheduler, "young", 8, max_tokens=9)
    add(scheduler, "new", 1)
    step(scheduler)
    step(scheduler)
    assert scheduler.request_ids == ["old", "young", "new"]


def test_the_first_schedule_is_timed_once():
    scheduler = make_scheduler(num_blocks=4, tokens=16)
    add(scheduler, "old", 8, max_tokens=9)
    scheduler._clock.now_s = 5.0
    young = add(scheduler, "young", 8, max_tokens=9)
    step(scheduler)
    step(scheduler)
    assert scheduler.counters.preemptions == 1
    scheduler.remove("old")
    scheduler._clock.now_s = 9.0
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
    scheduler._requests.clear()
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


class TestSwapping:
    """Preempted sequences go to host memory while there is room."""

    def crowded(self, host_blocks):
        scheduler = make_scheduler(num_blocks=4, tokens=16, host_blocks=host_blocks)
        add(scheduler, "old", 7, max_tokens=9)
        add(scheduler, "young", 7, max_tokens=9)
        step(scheduler)
        step(scheduler)
        return scheduler

    def test_it_goes_out_and_comes_back_where_it_was(self):
        scheduler = self.crowded(host_blocks=2)
        batch = scheduler.schedule()
        assert batch.swap_out == ((2, 0), (3, 1))
        assert batch.released == ("young",)
        commit(scheduler, batch)
        assert scheduler.swap.num_free == 0
        scheduler.remove("old")
        batch = scheduler.schedule()
        (sequence,) = batch.sequences
        assert (sequence.start, sequence.end, len(sequence.new_block_ids[0])) == (8, 9, 3)
        assert [move[0] for move in batch.swap_in] == [0, 1]
        assert [move[1] for move in batch.swap_in] == sequence.new_block_ids[0][:2]
        assert batch.new[0].num_tokens == 9
        assert (scheduler.counters.preemptions, scheduler.counters.swaps) == (1, 1)
        commit(scheduler, batch)
        scheduler.check_integrity()

    def test_several_go_out_and_come_back_in_one_pass(self):
        scheduler = make_scheduler(num_blocks=8, tokens=32, host_blocks=4)
        for name in "abcd":
            add(scheduler, name, 8, max_tokens=9)
        step(scheduler)
        batch = scheduler.schedule()
        commit(scheduler, batch)
        assert batch.request_ids == ["a", "b"]
        assert batch.swap_out == ((6, 0), (7, 1), (4, 2), (5, 3))
        assert (scheduler.counters.preemptions, scheduler.counters.swaps) == (2, 2)
        scheduler.remove("a")
        scheduler.remove("b")
        batch = scheduler.schedule()
        assert batch.request_ids == ["c", "d"]
        assert [host for host, _ in batch.swap_in] == [2, 3, 0, 1]

    def test_without_room_in_host_memory_it_is_computed_anew(self):
        scheduler = self.crowded(host_blocks=1)
        assert scheduler.schedule().swap_out == ()
        assert (scheduler.counters.preemptions, scheduler.counters.swaps) == (1, 0)

    def test_it_waits_in_host_memory_until_there_is_room(self):
        scheduler = self.crowded(host_blocks=2)
        step(scheduler)
        assert set(step(scheduler)) == {"old"}
        assert "young" in scheduler.swap

    def test_an_aborted_one_leaves_nothing_in_host_memory(self):
        scheduler = self.crowded(host_blocks=2)
        step(scheduler)
        scheduler.remove("young")
        scheduler.remove("old")
        scheduler.check_integrity()

    def test_after_a_failed_pass_it_is_computed_anew(self):
        scheduler = self.crowded(host_blocks=2)
        assert scheduler.fail(scheduler.schedule()) == ["old"]
        assert scheduler.request("young").num_computed_tokens == 0
        batch = scheduler.schedule()
        assert (batch.is_fresh, batch.released, batch.swap_in) == (True, (), ())
        assert [(s.request_id, s.start, s.end) for s in batch.sequences] == [("young", 0, 9)]
        assert scheduler.swap.num_free == 2


class TestPrefixes:
    """What is known is not computed again."""

    def test_an_equal_beginning_is_taken_from_the_cache_even_after_its_end(self):
        scheduler = make_scheduler(tokens=16, caches=True)
        add(scheduler, "a", 10, max_tokens=1)
        assert step(scheduler) == {"a": (0, 10, True)}
        again = add(scheduler, "b", 9, max_tokens=1)
        assert step(scheduler) == {"b": (8, 9, True)}
        assert again.num_cached_tokens == 8
        add(scheduler, "c", 10)
        assert step(scheduler) == {"c": (8, 10, True)}
        assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (29, 16)

    def test_a_block_that_ends_in_the_output_is_named_by_what_stands_in_it(self):
        scheduler = make_scheduler(tokens=16, caches=True)
        add(scheduler, "a", 7, max_tokens=2)
        step(scheduler)
        step(scheduler)
        scheduler.add(Request("b", [*range(7), 5, 9], make_sampling(), arrival_s=0.0))
        assert step(scheduler) == {"b": (8, 9, True)}

    def test_the_last_token_is_always_computed(self):
        scheduler = make_scheduler(tokens=16, caches=True)
        add(scheduler, "a", 8, max_tokens=1)
        step(scheduler)
        add(scheduler, "b", 8)
        assert step(scheduler) == {"b": (4, 8, True)}

    def test_another_salt_shares_nothing(self):
        scheduler = make_scheduler(tokens=16, caches=True)
        add(scheduler, "a", 10, max_tokens=1)
        step(scheduler)
        add(scheduler, "b", 10, salt="other")
        assert step(scheduler) == {"b": (0, 10, True)}

    def test_whoever_asks_for_prompt_logprobs_computes_the_whole_prompt(self):
        scheduler = make_scheduler(tokens=16, seqs=16, caches=True)
        add(scheduler, "a", 10, max_tokens=1)
        step(scheduler)
        add(scheduler, "b", 10, prompt_logprobs=0)
        assert step(scheduler) == {"b": (0, 10, True)}

    def test_a_prefix_that_does_not_fit_now_is_found_again_later(self):
        scheduler = make_scheduler(num_blocks=4, tokens=16, caches=True)
        add(scheduler, "a", 9, max_tokens=4)
        step(scheduler)
        waiting = add(scheduler, "b", 15)
        assert set(step(scheduler)) == {"a"}
        assert waiting.num_computed_tokens == 0
        scheduler.remove("a")
        assert step(scheduler) == {"b": (8, 15, True)}
        assert scheduler.counters.prefix_queries == 9 + 15

    def test_a_preempted_sequence_finds_what_it_computed_and_is_not_counted_again(self):
        scheduler = make_scheduler(num_blocks=4, tokens=16, caches=True)
        add(scheduler, "old", 7, max_tokens=9)
        request = Request("young", list(range(100, 107)), make_sampling(max_tokens=9), arrival_s=0.0)
        scheduler.add(request)
        for _ in range(3):
            step(scheduler)
        scheduler.remove("old")
        assert step(scheduler)["young"][0] > 0
        assert request.num_cached_tokens == 0
        assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (14, 0)


class TestPromptLogprobs:
    """Rows with logits are as many as sequences may run."""

    def test_a_chunk_takes_the_rows_that_running_sequences_leave(self):
        scheduler = make_scheduler(tokens=16, seqs=4)
        add(scheduler, "a", 9, prompt_logprobs=0)
        add(scheduler, "b", 2)
        assert step(scheduler) == {"a": (0, 4, False)}
        assert step(scheduler) == {"a": (4, 8, False)}
        assert step(scheduler) == {"a": (8, 9, True), "b": (0, 2, True)}
        assert step(scheduler) == {"a": (9, 10, True), "b": (2, 3, True)}

    def test_output_of_another_worker_needs_no_rows(self):
        scheduler = make_scheduler(tokens=16, seqs=2)
        request = Request("a", [1] * 4, make_sampling(prompt_logprobs=0, max_tokens=9), arrival_s=0.0)
        request.output_token_ids += [2] * 6
        scheduler.add(request)
        assert [step(scheduler)["a"][:2] for _ in range(3)] == [(0, 2), (2, 4), (4, 10)]

    def test_every_running_sequence_keeps_a_row(self):
        scheduler = make_scheduler(tokens=16, seqs=4)
        add(scheduler, "a", 2)
        step(scheduler)
        add(scheduler, "b", 9, prompt_logprobs=0)
        assert step(scheduler) == {"a": (2, 3, True), "b": (0, 3, False)}


class TestWindows:
    """Layers with a window hold the window only."""

    def test_a_long_prompt_in_chunks_holds_the_window_and_its_chunk(self):
        scheduler = make_scheduler(num_blocks=9, tokens=4, max_model_len=40, windows=(6,))
        add(scheduler, "a", 38, max_tokens=2)
        while scheduler.has_work:
            step(scheduler)
            assert scheduler.tables.pool.num_used <= 4
        scheduler.check_integrity()
