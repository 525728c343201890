"""The scheduler without a free block: who is preempted, where it goes, how it comes back."""

from tests.worker.engine.scheduler_kit import add, commit, make_scheduler, step


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


def test_a_pass_that_preempts_admits_nobody_else_into_what_it_took():
    scheduler = make_scheduler(num_blocks=4, tokens=16)
    add(scheduler, "old", 7, max_tokens=9)
    add(scheduler, "young", 7, max_tokens=9)
    step(scheduler)
    step(scheduler)
    add(scheduler, "urgent", 1, priority=-1)
    assert set(step(scheduler)) == {"old"}
    assert set(step(scheduler)) == {"old", "urgent"}


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
