"""The worklist: deduplicated, one pass per key at a time, sooner marks win, failures back off."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_kube.errors import Unavailable
from dormouse_operator.errors import NotLeading
from dormouse_operator.model import Key
from dormouse_operator.worklist import CHANGED, SWEPT, Dirty, Worklist

A, B, C = Key("n", "a"), Key("n", "b"), Key("n", "c")


def test_a_key_that_is_marked_twice_is_given_out_once():
    dirty = Dirty()
    dirty.mark(A, 1.0)
    dirty.mark(A, 0.5)
    dirty.mark(A, 2.0)
    assert dirty.next_due(9) == 0.5
    assert dirty.take(0.4, 9) == []
    assert dirty.take(0.5, 9) == [A]
    assert dirty.take(9.0, 9) == []


def test_a_key_that_is_marked_while_it_is_worked_on_comes_again_afterwards():
    dirty = Dirty()
    dirty.mark(A, 0.0)
    dirty.take(0.0, 9)
    dirty.mark(A, 0.0)
    assert dirty.take(1.0, 9) == []
    assert dirty.next_due(9) is None
    dirty.give_back(A)
    assert dirty.take(1.0, 9) == [A]


def test_the_longest_waiting_come_first_and_not_too_many_at_once():
    dirty = Dirty()
    for due, key in enumerate((B, C, A)):
        dirty.mark(key, float(due))
    assert dirty.take(9.0, 2) == [B, C]
    assert dirty.next_due(2) is None, "only the end of a pass makes room"
    assert repr(dirty) == "Dirty(1 due, 2 busy)"
    dirty.give_back(B)
    assert dirty.next_due(2) == 2.0
    assert dirty.take(9.0, 2) == [A]


def test_what_changed_goes_before_what_is_only_looked_through():
    dirty = Dirty()
    dirty.mark(A, 0.0, SWEPT)
    dirty.mark(B, 0.0, SWEPT)
    dirty.mark(C, 5.0)
    dirty.mark(B, 6.0)
    assert dirty.take(7.0, 1) == [B], "a change makes it urgent, and it has waited longest"
    assert dirty.take(7.0, 3) == [C, A]
    assert dirty.waiting(9.0) == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("mark"), st.sampled_from("abcd"), st.integers(0, 9), st.sampled_from([CHANGED, SWEPT])),
            st.tuples(st.just("take"), st.integers(1, 3)),
            st.tuples(st.just("give"), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
def test_no_mark_is_lost_or_given_out_early_or_twice_whatever_happens(steps):
    dirty, due, busy, now = Dirty(), {}, [], 0.0
    for step in steps:
        now += 1.0
        match step:
            case ("mark", name, later, rank):
                key = Key("n", name)
                dirty.mark(key, now + later, rank)
                due[key] = min(due.get(key, now + later), now + later)
            case ("take", limit):
                for key in dirty.take(now, limit):
                    assert due.pop(key) <= now
                    assert key not in busy
                    busy.append(key)
                ready = [key for key, time in due.items() if time <= now and key not in busy]
                assert not ready or len(busy) >= limit
                assert len(dirty.waiting(now)) == len(ready)
            case ("give", index) if index < len(busy):
                dirty.give_back(busy.pop(index))
        dirty.check_integrity()
    for key in busy:
        dirty.give_back(key)
    assert set(dirty.take(1000.0, 99)) == set(due)


class Passes:
    """Records the passes and answers them in order; the last answer repeats."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.seen: list[Key] = []
        self.now = 0.0

    async def __call__(self, key):
        self.seen.append(key)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def running(passes, **kwargs):
    """Return a worklist that runs over a clock of the test's own, and its task."""
    errors: list[str] = []
    worklist = Worklist(passes, clock=lambda: passes.now, on_error=errors.append, rng=random.Random(1), **kwargs)
    task = asyncio.create_task(worklist.run())
    await settle()
    return worklist, task, errors


async def stop(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_marks_lead_to_one_pass_each_and_then_to_silence():
    passes = Passes(None)
    worklist, task, _ = await running(passes)
    worklist.mark(A)
    worklist.mark(A)
    worklist.mark(B)
    await settle()
    assert passes.seen == [A, B]
    await stop(task)


async def test_a_pass_says_when_it_wants_to_come_again():
    passes = Passes(5.0, None)
    worklist, task, _ = await running(passes)
    worklist.mark(A)
    await settle()
    assert passes.seen == [A]
    passes.now = 5.0
    worklist.mark(B, 100.0)  # wakes the loop, as time would
    await settle()
    assert passes.seen == [A, A]
    await stop(task)


async def test_failures_back_off_are_counted_and_do_not_stop_the_others(caplog):
    passes = Passes(Unavailable("down"), ValueError("a bug"), None)
    worklist, task, errors = await running(passes)
    worklist.mark(A)
    await settle()
    assert repr(worklist) == "Worklist(Dirty(1 due, 0 busy), 1 failing)"
    for now in (10.0, 30.0):
        passes.now = now
        worklist.mark(B, 1000.0)
        await settle()
    assert errors == ["Unavailable", "ValueError"]
    assert passes.seen == [A, A, A]
    assert "0 failing" in repr(worklist)
    assert "Traceback" in caplog.text, "only the unexpected one brings its traceback"
    assert caplog.text.count("Traceback") == 1
    await stop(task)


async def test_losing_the_lease_ends_the_work():
    passes = Passes(NotLeading("another holds it"))
    worklist, task, _ = await running(passes)
    worklist.mark(A)
    with pytest.raises(ExceptionGroup) as caught:
        await task
    assert caught.value.subgroup(NotLeading)


async def test_a_server_that_is_too_busy_decides_the_least_pause():
    passes = Passes(Unavailable("busy", retry_after_s=60.0), None)
    worklist, task, _ = await running(passes)
    worklist.mark(A)
    await settle()
    passes.now = 59.0
    worklist.mark(B)
    await settle()
    assert passes.seen == [A, B]
    passes.now = 60.0
    worklist.mark(B)
    await settle()
    assert passes.seen.count(A) == 2
    await stop(task)


async def test_a_sweep_looks_through_everything_and_tells_how_long_it_waits():
    passes = Passes(None)
    worklist, task, _ = await running(passes, max_concurrent=1)
    worklist.sweep([A, B, C])
    passes.now = 2.0
    assert worklist.waiting_s == [2.0, 2.0, 2.0]
    await settle()
    await settle()
    assert passes.seen == [A, B, C]
    await stop(task)


async def test_a_cancel_that_comes_together_with_a_change_ends_the_loop():
    async def reconcile(_):
        return None

    worklist = Worklist(reconcile, clock=asyncio.get_running_loop().time)
    worklist.mark(B, after_s=1000.0)
    running = asyncio.create_task(worklist.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    worklist.mark(A)
    await asyncio.sleep(0)  # the change is on its way to the loop
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=90.0)
    assert done == {running}
