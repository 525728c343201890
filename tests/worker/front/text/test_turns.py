"""Whose text is tokenized next: callers take turns, and a long text holds no short one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from dormouse_worker.front.text.turns import LONG_BYTES, NUM_THREADS, TINY_BYTES, Rota, TextWork

LONG = LONG_BYTES + 1


class Threads:
    """Threads that work when the test says so; what runs stands in `running`, in order."""

    def __init__(self):
        self.running = []

    def submit(self, work):
        future = Future()
        future.set_running_or_notify_cancel()
        self.running.append((work, future))
        return future

    @property
    def names(self):
        return [work() for work, _ in self.running]

    async def end(self, name):
        """End the work of this name, and let the loop hear of it."""
        number = self.names.index(name)
        work, future = self.running.pop(number)
        future.set_result(work())
        await settle()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def threads():
    return Threads()


@pytest.fixture
def work(threads):
    return TextWork(threads)


async def begin(work, name, caller, num_bytes=0):
    task = asyncio.create_task(work.run(lambda: name, caller=caller, num_bytes=num_bytes))
    await settle()
    return task


def test_callers_take_turns_and_each_ones_items_keep_their_order():
    rota = Rota()
    for caller, item in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]:
        rota.put(caller, item)
    assert (repr(rota), len(rota)) == ("Rota(6 of 3 callers)", 6)
    assert [rota.take() for _ in range(7)] == [1, 4, 5, 2, 6, 3, None]


def test_who_left_is_forgotten():
    rota = Rota()
    rota.put("a", 1)
    rota.put("a", 2)
    rota.drop("a", 1)
    rota.drop("a", 7)
    rota.drop("b", 7)
    assert rota.take() == 2
    assert (rota.take(), len(rota)) == (None, 0)


async def test_twenty_long_texts_of_one_caller_hold_no_short_one_of_another(work, threads):
    long = [await begin(work, f"long {n}", "greedy", LONG) for n in range(20)]
    assert threads.names == ["long 0"], "never more than one thread, so that one is left"
    short = await begin(work, "short", "modest")
    assert threads.names == ["long 0", "short"]
    await threads.end("short")
    assert await short == "short"
    for n in range(20):
        await threads.end(f"long {n}")
    assert [await task for task in long] == [f"long {n}" for n in range(20)]
    assert repr(work) == "TextWork(0 short, 0 long; waiting: Rota(0 of 0 callers), Rota(0 of 0 callers))"


async def test_a_long_text_waits_for_one_of_another_caller_and_not_for_all_of_them(work, threads):
    for n in range(5):
        await begin(work, f"greedy {n}", "greedy", LONG)
    await begin(work, "modest", "modest", LONG)
    await threads.end("greedy 0")
    assert threads.names == ["greedy 1"]
    await threads.end("greedy 1")
    assert threads.names == ["modest"]


async def test_many_short_texts_of_one_caller_do_not_hold_another_callers(work, threads):
    for n in range(5):
        await begin(work, f"greedy {n}", "greedy")
    await begin(work, "modest", "modest")
    assert len(threads.names) == NUM_THREADS
    await threads.end("greedy 0")
    await threads.end("greedy 1")
    assert set(threads.names) == {"greedy 2", "modest"}


async def test_a_tiny_text_takes_no_thread_and_waits_for_nobody(work, threads):
    """The way to a thread and back takes longer than the text, most of all beside streams."""
    for n in range(5):
        await begin(work, f"greedy {n}", "greedy", TINY_BYTES + 1)
    assert await work.run(lambda: "tiny", caller="modest", num_bytes=TINY_BYTES) == "tiny"
    assert threads.names == ["greedy 0", "greedy 1"]
    with pytest.raises(ValueError, match="no such word"):
        await work.run(lambda: [].index("no such word"), caller="modest", num_bytes=1)


async def test_work_of_unknown_size_takes_a_thread(work, threads):
    """What nobody counted may be anything."""
    await begin(work, "unknown", "modest")
    assert threads.names == ["unknown"]


async def test_who_leaves_takes_what_waits_with_it(work, threads):
    running = await begin(work, "a", "x", LONG)
    waiting = await begin(work, "b", "x", LONG)
    waiting.cancel()
    await settle()
    assert "Rota(0 of 0 callers)" in repr(work)
    await threads.end("a")
    assert (await running, threads.names) == ("a", [])


async def test_the_turn_of_who_leaves_in_the_same_moment_goes_to_the_next(work, threads):
    await begin(work, "a", "x", LONG)
    left = await begin(work, "b", "x", LONG)
    await begin(work, "c", "x", LONG)
    _, future = threads.running.pop(0)
    future.set_result("a")
    await asyncio.sleep(0)  # `b` was given its turn, and has not taken it yet
    left.cancel()
    await settle()
    assert threads.names == ["c"]


async def test_the_turn_of_who_has_just_left_goes_to_the_next(work, threads):
    await begin(work, "a", "x", LONG)
    left = await begin(work, "b", "x", LONG)
    await begin(work, "c", "x", LONG)
    _, future = threads.running.pop(0)
    left.cancel()
    future.set_result("a")
    await settle()
    assert threads.names == ["c"]


async def test_a_thread_is_taken_until_its_work_has_ended_whoever_left(work, threads):
    left = await begin(work, "a", "x", LONG)
    left.cancel()
    await begin(work, "b", "x", LONG)
    assert threads.names == ["a"], "what runs cannot be cut"
    await threads.end("a")
    assert threads.names == ["b"]


async def test_what_the_work_raises_reaches_who_asked_and_frees_the_thread(work, threads):
    task = await begin(work, "a", "x")
    _, future = threads.running.pop()
    future.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await task
    await settle()
    assert repr(work).startswith("TextWork(0 short, 0 long")


def test_work_that_ends_after_the_loop_disturbs_nobody(threads):
    async def leave():
        await begin(TextWork(threads), "a", "x")

    asyncio.run(leave())
    _, future = threads.running.pop()
    future.set_result("a")
