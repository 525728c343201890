"""Deaths and ends in the middle of a swap: of either engine, of the worker, of the caller."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY
from dormouse_worker.common.ipc import State
from dormouse_worker.front.app import Seams
from dormouse_worker.front.testing import VirtualTime
from dormouse_worker.testing.fake_engine import Script

ASLEEP, PROFILED = pb.WORKER_STATE_ASLEEP, pb.WORKER_STATE_PROFILED
OTHER_TOKENS = (11, 12)
RESTARTS = "--max-engine-restarts=3"


async def test_a_caller_that_hangs_up_does_not_stop_the_swap(open_with, other):
    async with open_with(Script(hangs_at="load", tokens=OTHER_TOKENS)) as house:
        swapping = house.swap(other)
        await house.until_spawned(2)
        swapping.cancel()
        house.engine.loaded.set()
        await house.until_state(State.PROFILED)
        await house.front.worker.changes.until(lambda: not house.front.worker.swapping_to)
        await house.make_ready()
        assert await house.tokens() == [11, 12, 11, 12]


async def test_the_end_of_the_worker_during_a_swap_ends_both_engines(open_with, other):
    async with open_with(Script(hangs_at="load")) as house:
        swapping = house.swap(other)
        await house.until_spawned(2)
        house.stop.set()
        error = await house.refusal(swapping)
        assert "shutting down (ShuttingDown); nothing is woken any more" in error.details()
        assert await house.running == 0
        assert [await engine.wait() for engine in house.engines] == [0, -9]
        told = [command.method for command in house.engines[0].engine.commands]
        assert told == ["initialize_cache", "sleep"]


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def keep(open_with, time):
    """Start a front in virtual time whose engines may be restarted."""

    def opened(script, **kwargs):
        return open_with(script, seams=Seams(clock=time, sleep=time.sleep), max_engine_restarts=3, **kwargs)

    return opened


async def old_engine_dies(house, exit_code=-9):
    lost = asyncio.create_task(house.until_state(State.STARTING))
    house.engines[0].die(exit_code, "Killed")
    await lost


async def test_an_old_engine_that_died_asleep_is_started_again_only_if_the_swap_fails(keep, time, other):
    async with keep(Script(hangs_at="load")) as house:
        swapping = house.swap(other, RESTARTS)
        await house.until_spawned(2)
        await old_engine_dies(house)
        assert (await house.http("/healthz"))[0] == 200
        assert not time.is_napping(0.0), "nobody waits to start it beside the new one"
        house.engine.die(-9)
        assert "the engine before died meanwhile and is started again" in (await house.refusal(swapping)).details()
        await time.until_nap(0.0)
        time.advance(0.0)
        assert (await house.make_ready()).settings_digest == "digest"
        assert await house.tokens() == [1, 2, 3, 1]
        assert len(house.engines) == 3


async def test_an_old_engine_that_died_asleep_does_not_hinder_the_new_one(keep, time, other):
    async with keep(Script(hangs_at="load", tokens=OTHER_TOKENS)) as house:
        swapping = house.swap(other, RESTARTS)
        await house.until_spawned(2)
        await old_engine_dies(house)
        house.engine.loaded.set()
        assert (await swapping).state == PROFILED
        await house.make_ready()
        assert await house.tokens() == [11, 12, 11, 12]
        assert (len(house.engines), time.is_napping(0.0)) == (2, False)


async def test_the_worker_counts_as_alive_while_the_old_engine_is_silent_during_a_swap(keep, time, other):
    """A restart of the pod would lose both engines; a swap ends by itself."""
    async with keep(Script(hangs_at="load"), engine_timeout_s=10.0) as house:
        swapping = house.swap(other, RESTARTS)
        await house.until_spawned(2)
        naps = time.num_naps
        time.advance(10.5)
        await time.until_naps(naps + 1)
        assert house.front.worker.engine_overdue
        assert (await house.http("/healthz"))[0] == 200
        house.engine.loaded.set()
        assert (await swapping).state == PROFILED


async def test_a_swapped_engine_that_dies_is_started_again_with_its_own_settings(keep, time, other):
    async with keep(Script(tokens=OTHER_TOKENS)) as house:
        await house.swap(other, RESTARTS)
        await house.make_ready()
        house.engine.die(-9)
        await time.until_nap(0.0)
        time.advance(0.0)
        assert (await house.make_ready()).settings_digest == "other digest"
        assert await house.tokens() == [11, 12, 11, 12]


async def test_an_engine_whose_gpu_is_ill_is_not_swapped_for_another_one_on_it(keep, other):
    async with keep(Script(hangs_at="load")) as house:
        swapping = house.swap(other, RESTARTS)
        await house.until_spawned(2)
        house.engines[0].die(EXIT_GPU_UNHEALTHY, "Xid 79")
        await house.until_state(State.FAILED)
        house.engine.loaded.set()
        assert "(GPUUnhealthy)" in (await house.refusal(swapping)).details()
        assert (await house.operate("GetStatus")).failure.reason == "GPUUnhealthy"


async def test_an_old_engine_that_can_not_wake_is_told_of_beside_the_reason(open_house, other):
    old = Script(refusals={"wake_up": ("InsufficientMemory", "a neighbour came")})
    async with open_house(old, scripts={"other": Script(failure=("ModelInvalid", "broken"))}) as house:
        error = await house.refused_swap(other)
        assert "broken (ModelInvalid); the engine before could not be woken" in error.details()
        assert "a neighbour came" in error.details()
        assert (await house.operate("GetStatus")).state == ASLEEP
