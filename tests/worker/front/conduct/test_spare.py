"""A spare engine is started when the worker is at rest, and serves when the engine ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.ipc import State
from dormouse_worker.front.app import Seams
from dormouse_worker.front.conduct.spare import PAUSE_S, SpareEngine
from dormouse_worker.front.engine.status_board import Changes
from dormouse_worker.front.testing import VirtualTime
from dormouse_worker.testing.fake_engine import Script
from dormouse_worker.testing.in_process import InProcessEngine

READY = pb.WORKER_STATE_READY


class Waiting(InProcessEngine):
    """A fake engine that waits until it is told to begin."""

    def __init__(self):
        super().__init__(Script())
        self.start = None

    @property
    def is_alive(self):
        return not self._exit.done()

    def begin(self, start):
        self.start = start
        self._task = asyncio.create_task(self._run(Path(start.socket)))


class Spares:
    """All spares so far, with the settings for which each was started."""

    def __init__(self):
        self.all, self.settings, self.changes = [], [], Changes()
        self.fails = False

    async def spawn(self, settings):
        if self.fails:
            raise OSError("no memory")
        self.all.append(Waiting())
        self.settings.append(settings)
        self.changes.notify()
        return self.all[-1]

    async def until(self, number):
        await self.changes.until(lambda: len(self.all) >= number)
        return self.all[number - 1]


@pytest.fixture
def spares():
    return Spares()


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def open_with_spare(open_with, spares, time):
    def opened(**kwargs):
        spare = SpareEngine(spares.spawn, sleep=time.sleep)
        seams = Seams(clock=time, sleep=time.sleep)
        return open_with(spare=spare, seams=seams, max_engine_restarts=3, **kwargs)

    return opened


async def serve_from(house, spare, time):
    """Let the restart happen; return the state once the engine that was a spare is agreed with."""
    await time.until_nap(0.0)
    time.advance(0.0)
    await house.until_state(State.PROFILED)
    assert spare.start is not None
    return (await house.make_ready()).state


async def test_there_is_none_until_the_worker_is_at_rest(open_with_spare, spares):
    async with open_with_spare(ready=False) as house:
        await house.until_state(State.PROFILED)
        assert spares.all == []
        await house.make_ready()
        await spares.until(1)


async def test_an_engine_that_died_comes_back_from_the_spare_and_another_one_waits(open_with_spare, spares, time):
    async with open_with_spare() as house:
        spare = await spares.until(1)
        house.engine.die(-9)
        assert await serve_from(house, spare, time) == READY
        assert spare.start.settings == house.started[0]
        assert spares.settings[0] == replace(spare.start.settings, image_dir=""), "started for the same"
        assert len(house.started) == 1, "nothing else was started"
        assert await house.tokens() == [1, 2, 3, 1]
        await spares.until(2)


async def test_a_wake_from_standby_takes_the_spare(open_with_spare, spares):
    async with open_with_spare() as house:
        spare = await spares.until(1)
        await house.operate("Sleep", level=3)
        await house.operate("WakeUp")
        await house.until_state(State.PROFILED)
        assert (await house.make_ready()).state == READY
        assert (spare.start is not None, len(house.started)) == (True, 1)


async def test_a_swap_does_not_take_a_spare_of_other_settings_and_the_next_one_is_for_the_new(
    open_with_spare, spares, model_path, other
):
    async with open_with_spare() as house:
        stale = await spares.until(1)
        await house.swap(other, "--max-engine-restarts=3")
        assert (stale.start, await stale.wait()) == (None, -9)
        await house.make_ready()
        await spares.until(2)
        assert [settings.model for settings in spares.settings] == [str(model_path), str(other)]


async def test_a_spare_that_ended_by_itself_is_not_taken_and_the_next_one_comes_later(open_with_spare, spares, time):
    async with open_with_spare() as house:
        dead = await spares.until(1)
        dead.die(-9, "Killed")
        await time.until_nap(PAUSE_S)
        house.engine.die(-9)
        await time.until_nap(0.0)
        time.advance(0.0)
        await house.until_spawned(2)
        assert dead.start is None
        await house.make_ready()
        assert len(spares.all) == 1
        time.advance(PAUSE_S)
        await spares.until(2)


async def test_one_that_can_not_be_started_is_tried_again_later_and_harms_nobody(open_with_spare, spares, time):
    spares.fails = True
    async with open_with_spare() as house:
        await time.until_nap(PAUSE_S)
        assert await house.tokens() == [1, 2, 3, 1]
        spares.fails = False
        time.advance(PAUSE_S)
        await spares.until(1)


async def test_it_ends_with_the_worker(open_with_spare, spares):
    async with open_with_spare():
        spare = await spares.until(1)
    assert await spare.wait() == -9
