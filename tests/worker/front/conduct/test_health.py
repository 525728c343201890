"""CheckHealth: what is asked of the engine, when nothing is, and how an ill one is told."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dormouse_worker.common.commands import CheckHealth, ResetPrefixCache
from dormouse_worker.common.ipc import CommandRequest, State
from dormouse_worker.front.app import Seams
from dormouse_worker.front.testing import VirtualTime
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode


def checks(house):
    """Return how often the engine was asked to compute."""
    return house.engine.engine.commands.count(CheckHealth())


@pytest.mark.parametrize("ready", [True, False])
async def test_an_engine_that_is_awake_has_to_compute(open_house, ready):
    async with open_house(ready=ready) as house:
        await house.operate("DetermineNumAvailableBlocks")
        assert (await house.operate("CheckHealth")).seconds_since_step >= 0
        assert checks(house) == 1


async def test_a_sleeping_or_loading_one_is_left_alone(open_house):
    async with open_house() as house:
        await house.operate("Sleep", level=2)
        await house.operate("CheckHealth")
        assert checks(house) == 0
    async with open_house(ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        await house.operate("CheckHealth")
        house.engine.loaded.set()
        await house.operate("DetermineNumAvailableBlocks")
        assert checks(house) == 0


async def test_one_that_carries_out_a_command_is_left_alone(open_house):
    async with open_house(Script(hangs_at="reset_prefix_cache")) as house:
        resetting = asyncio.create_task(house.operate("ResetPrefixCache"))
        await house.engine.until_received(
            lambda m: isinstance(m, CommandRequest) and isinstance(m.command, ResetPrefixCache)
        )
        await house.operate("CheckHealth")
        assert checks(house) == 0
        resetting.cancel()


async def test_a_device_that_does_not_compute_is_told_in_its_words(open_house):
    async with open_house(Script(refusals={"check_health": ("Internal", "eight ones are 7")})) as house:
        refused = await house.refusal(house.operate("CheckHealth"))
        assert (refused.code(), "eight ones are 7" in refused.details()) == (Code.UNAVAILABLE, True)


async def test_an_engine_that_dies_of_it_is_unavailable(open_house):
    async with open_house(Script(dies_at="check_health")) as house:
        refused = await house.refusal(house.operate("CheckHealth"))
        assert (refused.code(), "not healthy" in refused.details()) == (Code.UNAVAILABLE, True)


async def test_one_that_does_not_answer_is_told_and_is_not_hidden_from_who_looks_for_stuck_engines(open_house):
    """The clock stands still, so only the answer is late."""
    time = VirtualTime()
    seams = Seams(clock=time, sleep=time.sleep)
    async with open_house(Script(hangs_at="check_health"), seams=seams, engine_timeout_s=0.05) as house:
        refused = await house.refusal(house.operate("CheckHealth"))
        assert refused.code() is Code.UNAVAILABLE
        assert "it did not answer within 0.1 s (--engine-timeout)" in refused.details()
        assert house.front.worker.engine_overdue == ""
        time.advance(0.1)
        assert "check_health took longer than 0.05 s (--engine-timeout)" in house.front.worker.engine_overdue
