"""State as the front knows it, and who is woken when it changes."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.front.engine.status_board import Changes, StatusBoard

LIFE = [State.LOADING, State.PROFILED, State.INITIALIZING, State.READY]


@pytest.fixture
def board():
    """A board of a worker that is READY."""
    board = StatusBoard(Changes())
    for state in LIFE:
        board.apply(EngineStatus(state=state))
    return board


async def test_a_waiter_is_woken_by_the_change_it_waits_for_and_not_before(board):
    waiting = asyncio.create_task(board.changes.until(lambda: board.state is State.DRAINING))
    await asyncio.sleep(0)
    board.changes.notify()
    await asyncio.sleep(0)
    assert not waiting.done()
    board.start_draining()
    await waiting


async def test_a_stream_gives_the_newest_and_skips_repeats_and_ends_on_close():
    changes, values = Changes(), [1]
    seen = []

    async def read():
        seen.extend([value async for value in changes.stream(lambda: values[0], min_interval_s=0)])

    reading = asyncio.create_task(read())
    for value in (1, 2, 2, 3):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        values[0] = value
        changes.notify()
    await asyncio.sleep(0)
    changes.close()
    await reading
    assert seen in ([1, 2, 3], [1, 3])


async def test_what_is_urgent_is_told_before_the_interval_is_over_and_nothing_else():
    changes, values = Changes(), [1]
    stream = changes.stream(lambda: values[0], min_interval_s=1e6, is_urgent=lambda told: values[0] > told + 10)
    assert await anext(stream) == 1
    coming = asyncio.ensure_future(anext(stream))
    for value in (5, 11, 12):
        assert not coming.done(), f"{values[0]} can wait"
        values[0] = value
        changes.notify()
        for _ in range(5):
            await asyncio.sleep(0)
    assert await coming == 12


def test_draining_begins_once_and_only_from_ready(board):
    assert board.start_draining()
    assert not board.start_draining()
    assert board.state is State.DRAINING
    board.stop_draining()
    assert board.state is State.READY
    assert not StatusBoard(Changes()).start_draining()


def test_draining_ends_with_the_sleep(board):
    board.start_draining()
    board.apply(EngineStatus(state=State.ASLEEP))
    board.apply(EngineStatus(state=State.WAKING))
    board.apply(EngineStatus(state=State.READY))
    assert board.state is State.READY


def test_the_engine_repeating_itself_does_not_end_a_drain(board):
    board.start_draining()
    board.apply(EngineStatus(state=State.READY, num_gpu_blocks=3))
    assert (board.state, board.engine.num_gpu_blocks) == (State.DRAINING, 3)


def test_a_jump_fails_the_worker_and_names_both_states(board):
    board.apply(EngineStatus(state=State.ASLEEP))
    assert board.state is State.FAILED
    assert board.failure.message == "the engine went from READY to ASLEEP, which the lifecycle does not allow"


def test_the_first_failure_stays(board):
    board.fail("EngineDied", "one")
    board.fail("Internal", "two")
    board.apply(EngineStatus(state=State.READY))
    assert (board.state, board.failure.reason) == (State.FAILED, "EngineDied")


def test_a_failure_of_the_engine_is_told_in_its_words(board):
    board.apply(EngineStatus(state=State.FAILED, failure_reason="GoldenTokensDiffer", failure_message="token 3"))
    assert (board.failure.reason, board.failure.message) == ("GoldenTokensDiffer", "token 3")
