"""The scheduler: who runs, in which chunks, who is preempted; and a simulation to the end of random loads."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dormouse_worker.engine.batch import SampledToken
from dormouse_worker.engine.blocks import BlockAllocator
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.scheduler import Limits, Scheduler
from dormouse_worker.engine.testing import ManualClock, make_sampling


def make_scheduler(num_blocks=10, block_size=4, *, seqs=4, tokens=8, max_model_len=16):
    return Scheduler(BlockAllocator(num_blocks, block_size), Limits(seqs, tokens, max_model_len), ManualClock())


def add(scheduler, request_id, num_tokens=3, **sampling):
    request = Request(request_id, list(range(num_tokens)), make_sampling(**sampling), arrival_s=0.0)
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
    assert repr(scheduler) == "Scheduler(running=1, waiting=1, BlockAllocator(total=10, free=9, used=1, sequences=1))"


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
    add(scheduler, "young", 7, max_tokens=9)
    step(scheduler)
    step(scheduler)
    assert scheduler.blocks.num_free == 0
    assert step(scheduler) == {"old": (8, 9, True)}
    assert (scheduler.num_preemptions, scheduler.num_running, scheduler.num_waiting) == (1, 1, 1)
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
    request = add(scheduler, "a", 8, max_tokens=9)
    scheduler._clock.now_s = 5.0
    step(scheduler)
    scheduler._preempt_youngest()
    scheduler._clock.now_s = 9.0
    step(scheduler)
    assert request.first_scheduled_s == 5.0


def test_a_complete_request_is_told_and_freed():
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=1)
    (progress,) = commit(scheduler, scheduler.schedule())
    assert (progress.request.output_token_ids, progress.finish_reason) == ([5], "length")
    assert (scheduler.has_work, scheduler.blocks.num_used) == (False, 0)


def test_running_and_waiting_requests_can_be_removed_at_any_time():
    scheduler = make_scheduler(seqs=1)
    add(scheduler, "a")
    add(scheduler, "b")
    step(scheduler)
    assert [scheduler.remove(name) for name in ("b", "a", "a")] == [True, True, False]
    assert (scheduler.has_work, scheduler.blocks.num_used) == (False, 0)


def test_an_id_may_come_back_only_after_its_end():
    scheduler = make_scheduler()
    add(scheduler, "a")
    with pytest.raises(AssertionError):
        add(scheduler, "a")


def test_a_cache_too_small_for_the_longest_sequence_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="must fit alone"):
        make_scheduler(num_blocks=3, max_model_len=16)


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, aborts and passes over a small cache; at the end everything must have ended."""

    def __init__(self):
        super().__init__()
        self.scheduler = make_scheduler(num_blocks=6, block_size=4, seqs=3, tokens=5, max_model_len=24)
        self.open: dict[str, int] = {}  # id → tokens it still has to make
        self.count = 0

    @rule(num_tokens=st.integers(1, 23), max_tokens=st.integers(1, 12))
    def arrive(self, num_tokens, max_tokens):
        self.count += 1
        name = str(self.count)
        add(self.scheduler, name, num_tokens, max_tokens=max_tokens)
        self.open[name] = min(max_tokens, 24 - num_tokens)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        assert self.scheduler.remove(name)
        del self.open[name]

    @rule()
    def run_one_pass(self):
        batch = self.scheduler.schedule()
        if batch is None:
            assert not self.open
            return
        assert 0 < batch.num_tokens <= 5
        assert len(batch.sequences) <= 3
        for sequence in batch.sequences:
            assert len(sequence.token_ids) > 0
            assert len(sequence.block_ids) * 4 >= sequence.end
        for progress in commit(self.scheduler, batch):
            name = progress.request.request_id
            self.open[name] -= 1
            assert (progress.finish_reason is not None) == (self.open[name] == 0)
            if progress.finish_reason is not None:
                del self.open[name]

    @invariant()
    def blocks_are_conserved(self):
        self.scheduler.blocks.check_integrity()
        assert self.scheduler.num_running <= 3
        assert set(self.scheduler.request_ids) == set(self.open)

    def teardown(self):
        limit = 40 * (len(self.open) + 1)  # far above what chunks, outputs and preemptions can take
        while self.scheduler.has_work:
            self.run_one_pass()
            limit -= 1
            assert limit > 0, "no progress"
        assert not self.open
        assert self.scheduler.blocks.num_used == 0


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRandomLoads = SchedulerMachine.TestCase
