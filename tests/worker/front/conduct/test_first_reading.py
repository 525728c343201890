"""Files that do not answer, as on a volume whose server is gone: here a pipe into which nobody writes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial

import grpc
import pytest

from dormouse_worker.common.ipc import State
from dormouse_worker.front.app import Front, Seams
from dormouse_worker.front.conduct.first_reading import FirstReading, Patience
from dormouse_worker.front.engine.config import EngineConfig, Served
from dormouse_worker.front.engine.grants import Grants
from dormouse_worker.front.testing import engine_settings, front_settings, write_model
from dormouse_worker.front.worker import Worker

IMPATIENT = Seams(patience=Patience(opens_s=0.02, fails_s=0.05))
STEADY = Seams(patience=Patience(opens_s=0.02))


@pytest.fixture
def stuck(tmp_path):
    """Return a model's directory whose config.json does not answer, and a function that lets it."""
    config = write_model(tmp_path / "model") / "config.json"
    content = config.read_bytes()
    config.unlink()
    os.mkfifo(config)

    async def answer(answered=content):
        config.with_name("waits").write_bytes(content)
        pipe = await asyncio.to_thread(config.open, "wb")
        config.with_name("waits").replace(config)
        with pipe:
            pipe.write(answered)

    return config.parent, answer


async def test_the_ports_open_and_say_for_what_the_worker_waits(open_house, stuck, caplog):
    path, answer = stuck
    async with open_house(path=path, ready=False, seams=STEADY) as house:
        told = f"ModelUnreadable: {path}: a file there did not answer for 0.02 s; is its volume mounted"
        assert told.removeprefix("ModelUnreadable: ") in caplog.text
        refused = await house.refusal(house.tokenize("hello"))
        assert (refused.code(), told in refused.details()) == (grpc.StatusCode.UNAVAILABLE, True)
        assert (await house.http("/healthz"))[0] == 200
        assert told in (await house.http("/readyz"))[1]
        await answer()


async def test_the_worker_goes_on_when_the_files_answer(open_house, stuck):
    path, answer = stuck
    async with open_house(path=path, ready=False, seams=STEADY) as house:
        await answer()
        await house.until_state(State.PROFILED)
        await house.make_ready()
        assert len((await house.tokenize("hello")).token_ids) == 5


async def test_files_that_answer_with_nonsense_fail_the_worker_as_ever(open_house, stuck):
    path, answer = stuck
    async with open_house(path=path, ready=False, seams=STEADY) as house:
        await answer(b"{")
        await house.until_state(State.FAILED)
        assert house.front.worker.board.failure.reason == "ModelInvalid"


async def test_after_a_while_the_worker_fails_and_ends_when_the_files_answer(open_house, stuck):
    """Its container starts anew then, and serves."""
    path, answer = stuck
    async with open_house(path=path, ready=False, seams=IMPATIENT) as house:
        await house.until_state(State.FAILED)
        failure = house.front.worker.board.failure
        assert (failure.reason, str(path) in failure.message) == ("ModelUnreadable", True)
        assert not house.running.done()
        await answer()
        assert await house.running == 1


async def test_an_engine_that_can_not_be_started_then_ends_the_worker(stuck):
    path, answer = stuck

    async def refuse(_):
        raise OSError("no processes left")

    front = Front(front_settings(), engine_settings(path), lambda _: refuse, STEADY)
    await front.start()
    running = asyncio.create_task(front.run(asyncio.Event()))
    await answer()
    assert await running == 1
    assert "no processes left" in front.worker.losses.words


async def test_a_worker_may_end_before_its_files_answer(open_house, stuck, caplog):
    path, answer = stuck
    async with open_house(path=path, ready=False, seams=STEADY) as house:
        house.stop.set()
        assert await house.running == 0
    await answer()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def long_path(tmp_path):
    """Return a path for which the system has an error of its own, as a volume in trouble has."""
    return tmp_path / ("x" * 300)


async def test_a_volume_that_answers_with_an_error_fails_the_worker_with_its_words(open_house, long_path):
    async with open_house(path=long_path, ready=False) as house:
        await house.until_state(State.FAILED)
        failure = house.front.worker.board.failure
        assert failure.reason == "ModelUnreadable"
        assert f"{long_path}: a file there cannot be read: [Errno {errno.ENAMETOOLONG}]" in failure.message


class Reading:
    """What is read when the test says so, and a worker that waits for it."""

    def __init__(self, path, fails_s=60.0):
        front, engine = front_settings(), engine_settings(path)
        self.answer = Future()
        without = partial(EngineConfig, front, engine)
        self.reading = FirstReading(self.answer.result, without, path, Patience(opens_s=0.0, fails_s=fails_s))
        served, grants = Served(self.reading.soon()), Grants("", needs_grant=False)
        self.worker = Worker(None, served, grants, clock=time.monotonic, now=lambda: datetime.now(UTC))
        self.task = asyncio.create_task(self.reading.hand_over_late(self.worker, self.never))

    async def never(self):
        raise AssertionError("nothing was read, and an engine starts")


@pytest.mark.parametrize("error", [OSError(errno.ESTALE, "Stale file handle"), TimeoutError(errno.ETIMEDOUT, "gone")])
async def test_whatever_a_late_reading_raises_ends_the_worker_with_its_words(tmp_path, error):
    late = Reading(tmp_path)
    late.answer.set_exception(error)
    await late.task
    assert late.worker.died.is_set()
    assert str(error) in late.worker.losses.words


async def test_an_error_after_the_worker_gave_up_ends_it_too(tmp_path):
    late = Reading(tmp_path, fails_s=0.0)
    async for state in late.worker.changes.stream(lambda: late.worker.board.state, min_interval_s=0.0):
        if state is State.FAILED:
            break
    assert not late.worker.died.is_set()
    late.answer.set_exception(TimeoutError(errno.ETIMEDOUT, "gone"))
    await late.task
    assert late.worker.died.is_set()


async def test_a_time_out_of_the_volume_is_not_taken_for_the_end_of_our_patience(tmp_path):
    def read():
        raise TimeoutError(errno.ETIMEDOUT, "gone")

    without = partial(EngineConfig, front_settings(), engine_settings(tmp_path))
    reading = FirstReading(read, without, tmp_path, Patience())
    with pytest.raises(TimeoutError, match="gone"):
        reading.soon()
