"""Sleep level 3 in the middle of something: calls, a load, a failure, another sleep, a caller that hangs up."""

from __future__ import annotations

import asyncio

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.ipc import CommandRequest, State
from dormouse_worker.front.app import Seams
from dormouse_worker.front.conduct.supervisor import WATCH_PERIOD_S
from dormouse_worker.front.testing import VirtualTime
from dormouse_worker.testing.fake_engine import Script
from tests.worker.front.conduct.standby_kit import READY, STANDBY, Code, stand_by, wake


async def test_running_requests_end_first(house):
    call = await house.begin_request()
    going = await house.drained_by(stand_by(house))
    house.engine.is_paused = False
    for _ in range(3):
        house.engine.step()
    assert [t async for m in call for t in m.token_ids] == [1, 2, 3]
    assert (await going).state == STANDBY


async def test_requests_that_do_not_end_keep_the_engine(open_house):
    async with open_house(drain_timeout_s=0.05) as house:
        call = await house.begin_request()
        refused = await house.refusal(stand_by(house))
        assert (refused.code(), "1 requests still run" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        assert (await house.operate("GetStatus")).state == READY
        call.cancel()


async def test_an_abort_tells_callers_before_the_engine_ends(house):
    call = await house.begin_request()
    assert (await stand_by(house, mode=pb.DRAIN_MODE_ABORT)).state == STANDBY
    assert [m.finish_reason async for m in call] == [3]


async def test_an_engine_that_hangs_is_cut_off_and_its_callers_are_told(open_house):
    async with open_house(Script(hangs_at="abort_all"), drain_timeout_s=0.05) as house:
        call = await house.begin_request()
        assert (await stand_by(house, mode=pb.DRAIN_MODE_ABORT)).state == STANDBY
        refused = await house.refusal(call.read())
        assert (refused.code(), "goes to standby" in refused.details()) == (Code.UNAVAILABLE, True)
        assert not house.front.worker.link.is_alive
        assert (await wake(house)).state == READY


async def test_a_sleep_that_hangs_in_the_engine_is_overtaken(open_house):
    async with open_house(Script(hangs_at="sleep")) as house:
        hanging = asyncio.create_task(house.operate("Sleep", level=1))
        await house.engine.until_received(
            lambda message: isinstance(message, CommandRequest) and message.command.method == "sleep"
        )
        assert (await stand_by(house)).state == STANDBY
        assert (await house.refusal(hanging)).code() is Code.UNAVAILABLE
        assert len(house.engines) == 1


async def test_a_load_is_cut_off(open_house):
    async with open_house(ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        house.front.worker.link._end_grace_s = 600  # it would not see that it should end
        asked = asyncio.create_task(house.operate("DetermineNumAvailableBlocks"))
        assert (await house.operate("PrepareSleep", level=3)).request_counter == 0
        assert (await stand_by(house)).state == STANDBY
        refused = await house.refusal(asked)
        assert (refused.code(), "WakeUp first" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        assert (await wake(house)).state == READY


async def test_a_failed_worker_gives_its_device_back_and_may_try_again(open_house):
    async with open_house(Script(failure=("InsufficientMemory", "4 GiB are needed")), ready=False) as house:
        await house.until_state(State.FAILED)
        status = await stand_by(house)
        assert (status.state, status.failure.reason) == (STANDBY, "")
        await house.operate("WakeUp")
        await house.until_state(State.FAILED)
        assert len(house.engines) == 2


async def test_a_model_that_can_not_be_read_keeps_its_reason(open_house, tmp_path):
    async with open_house(ready=False, path=tmp_path) as house:
        assert (await stand_by(house)).state == STANDBY
        refused = await house.refusal(house.operate("WakeUp"))
        assert (refused.code(), "ModelInvalid" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        assert (await house.operate("GetStatus")).state == STANDBY


async def test_it_goes_on_when_its_caller_hangs_up(house):
    is_asked = asyncio.Event()
    house.engine.die = lambda *_: is_asked.set()  # it takes its time
    going = asyncio.create_task(stand_by(house))
    await is_asked.wait()
    going.cancel()
    refused = await house.refusal(house.operate("WakeUp"))
    assert (refused.code(), "a sleep at level 3 is under way" in refused.details()) == (Code.FAILED_PRECONDITION, True)
    del house.engine.die
    house.engine.die(0)
    await house.until_state(State.STANDBY)


async def test_an_engine_that_died_is_not_started_again_once_it_is_not_wanted(open_house):
    time = VirtualTime()
    seams = Seams(clock=time, sleep=time.sleep, warms_templates=False)
    async with open_house(seams=seams, max_engine_restarts=3) as house:
        house.engine.die(-9)
        await time.until_nap(0.0)  # until the next start
        assert (await stand_by(house)).state == STANDBY
        time.advance(WATCH_PERIOD_S)
        time.advance(0.0)
        assert (await wake(house)).state == READY
        assert len(house.engines) == 2
        assert 'dormouse_engine_restarts_total{model_name="tiny"} 0.0' in (await house.http("/metrics"))[1]
