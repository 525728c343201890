"""Sleep and wake in two phases, in parts, and what becomes of a preparation that nobody follows up."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.commands import InitializeCache, PrepareWakeUp, SaveShardedState, Sleep, WakeUp
from dormouse_worker.common.ipc import CommandRequest, State
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
ASLEEP, READY, DRAINING = pb.WORKER_STATE_ASLEEP, pb.WORKER_STATE_READY, pb.WORKER_STATE_DRAINING


def commands(house):
    """Return what the engine was told, without the cache's allocation."""
    return [command for command in house.engine.engine.commands if not isinstance(command, InitializeCache)]


async def state(house):
    return (await house.operate("GetStatus")).state


async def test_a_prepared_worker_lets_nobody_in_and_then_sleeps(house):
    await house.collect()
    prepared = await house.operate("PrepareSleep", level=1, request_counter=1)
    assert prepared.request_counter == 1
    assert "draining" in (await house.refusal(house.generate().read())).details()
    asleep = await house.operate("Sleep", level=1)
    assert (asleep.state, asleep.sleep_level, list(asleep.sleeping_tags)) == (ASLEEP, 1, ["weights", "kv_cache"])
    assert commands(house) == [Sleep(1, ("weights", "kv_cache"))]


async def test_a_request_in_the_meantime_refuses_the_sleep_with_both_counts(house):
    await house.collect()
    refused = await house.refusal(house.operate("PrepareSleep", level=1, request_counter=0))
    assert refused.code() is Code.FAILED_PRECONDITION
    assert "request_counter is 0, this worker has accepted 1" in refused.details()
    assert await state(house) == READY


async def test_running_requests_end_before_a_sleep_is_prepared(house):
    call = await house.begin_request()
    preparing = await house.drained_by(house.operate("PrepareSleep", level=2))
    house.engine.is_paused = False
    for _ in range(3):
        house.engine.step()
    assert [t async for m in call for t in m.token_ids] == [1, 2, 3]
    assert (await preparing).request_counter == 1
    assert await state(house) == DRAINING


async def test_a_preparation_that_aborts_ends_requests_with_a_last_message(house):
    call = await house.begin_request()
    await house.operate("PrepareSleep", level=2, mode=pb.DRAIN_MODE_ABORT)
    assert [m.finish_reason async for m in call] == [3]
    assert await state(house) == DRAINING


async def test_a_preparation_that_does_not_drain_in_time_is_taken_back(open_house):
    async with open_house(drain_timeout_s=0.05) as house:
        call = await house.begin_request()
        refused = await house.refusal(house.operate("PrepareSleep", level=2))
        assert (refused.code(), "1 requests still run" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        assert await state(house) == READY
        call.cancel()


async def test_a_wake_ends_a_preparation(house):
    await house.operate("PrepareSleep", level=1)
    assert (await house.operate("WakeUp")).state == READY
    assert await house.collect()


async def test_a_prepared_sleep_that_never_comes_opens_the_worker_again(open_house):
    async with open_house(prepared_timeout_s=0.05) as house:
        await house.operate("PrepareSleep", level=1)
        async with asyncio.timeout(90):
            await house.until_state(State.READY)
        assert await house.collect()


async def test_a_preparation_can_be_repeated(house):
    for _ in range(2):
        assert (await house.operate("PrepareSleep", level=1)).request_counter == 0
    assert await state(house) == DRAINING


async def test_a_refused_sleep_after_a_preparation_opens_the_worker(open_house):
    async with open_house(Script(refusals={"sleep": ("InsufficientMemory", "4096 bytes")})) as house:
        await house.operate("PrepareSleep", level=1)
        refused = await house.refusal(house.operate("Sleep", level=1))
        assert (refused.code(), "4096 bytes" in refused.details()) == (Code.RESOURCE_EXHAUSTED, True)
        assert await state(house) == READY


async def test_what_an_operator_drained_stays_closed_after_a_refused_sleep(open_house):
    async with open_house(Script(refusals={"sleep": ("InsufficientMemory", "4096 bytes")})) as house:
        await house.operate("Drain")
        await house.refusal(house.operate("Sleep", level=1))
        assert await state(house) == DRAINING


async def test_a_wake_while_the_engine_falls_asleep_comes_after_it(open_house):
    async with open_house(Script(hangs_at="sleep")) as house:
        sleeping = asyncio.create_task(house.operate("Sleep", level=1))
        told = await house.engine.until_received(
            lambda message: isinstance(message, CommandRequest) and message.command.method == "sleep"
        )
        waking = asyncio.create_task(house.operate("WakeUp", epoch=2))
        await house.front.worker.changes.until(lambda: house.front.worker.epoch == 2)
        assert await state(house) == DRAINING, "nobody is let in meanwhile"
        house.engine.engine.script = Script()
        house.engine.say(*house.engine.engine.handle(told))
        await sleeping
        assert (await waking).state == READY
        assert await house.collect()


async def test_asleep_already_is_prepared(house):
    await house.operate("Sleep", level=1)
    assert (await house.operate("PrepareSleep", level=2)).request_counter == 0
    assert (await house.operate("Sleep", level=2)).sleep_level == 2


async def test_a_wake_that_lacks_memory_says_how_much_and_reserves_nothing(open_house):
    async with open_house(Script(missing_bytes=4096), prepared_timeout_s=0.01) as house:
        await house.operate("Sleep", level=1)
        assert (await house.operate("PrepareWakeUp")).missing_bytes == 4096
        assert (await house.operate("WakeUp")).state == READY
        assert commands(house) == [Sleep(1), PrepareWakeUp(), WakeUp()]


async def test_parts_are_prepared_and_woken_by_their_names(house):
    await house.operate("Sleep", level=1, tags=["kv_cache"])
    assert (await house.operate("PrepareWakeUp", tags=["kv_cache"])).missing_bytes == 0
    await house.operate("WakeUp", tags=["kv_cache"])
    tags = ("kv_cache",)
    assert commands(house) == [Sleep(1, tags), PrepareWakeUp(tags), WakeUp(tags)]


async def test_a_prepared_wake_that_never_comes_gives_its_memory_back(open_house):
    async with open_house(prepared_timeout_s=0.05) as house:
        await house.operate("Sleep", level=1)
        await house.operate("PrepareWakeUp")
        async with asyncio.timeout(90):
            await house.engine.until_received(lambda _: commands(house)[2:] == [Sleep(1)])
        assert await state(house) == ASLEEP


async def test_a_prepared_wake_that_is_taken_back_makes_no_part_sleep_deeper(open_house):
    async with open_house(prepared_timeout_s=0.05) as house:
        await house.operate("Sleep", level=1)
        await house.operate("Sleep", level=2, tags=["weights"])
        await house.operate("PrepareWakeUp")
        async with asyncio.timeout(90):
            await house.engine.until_received(lambda _: commands(house)[3:] == [Sleep(1)])


async def test_awake_there_is_nothing_to_prepare(house):
    assert (await house.operate("PrepareWakeUp")).missing_bytes == 0
    assert await house.collect()


@pytest.mark.parametrize("method", ["PrepareSleep", "SaveShardedState"])
async def test_while_it_loads_nothing_else_is_done(open_house, method):
    async with open_house(ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        fields = {"level": 1} if method == "PrepareSleep" else {}
        refused = await house.refusal(house.operate(method, **fields))
        assert (refused.code(), "loading" in refused.details()) == (Code.FAILED_PRECONDITION, True)


async def test_a_wake_while_it_loads_asks_for_what_is_under_way(open_house):
    async with open_house(ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        assert (await house.operate("PrepareWakeUp")).missing_bytes == 0
        assert (await house.operate("WakeUp")).state == pb.WORKER_STATE_LOADING
        assert not house.engine.engine.commands


async def test_weights_are_saved_where_the_operator_says(house):
    await house.operate("SaveShardedState", directory="/shards")
    assert commands(house) == [SaveShardedState("/shards")]


async def test_a_worker_that_sleeps_answers_the_kubelets_probe_well_and_still_serves_nobody(house):
    await house.operate("Sleep", level=1)
    status, words = await house.http("/readyz")
    assert status == 200
    assert "asleep at level 1" in words
    assert "the readiness gate is closed" in words
    assert await house.inference_health() == "NOT_SERVING"
    await house.operate("WakeUp")
    assert await house.http("/readyz") == (200, "ok\n")


async def test_a_worker_without_an_operator_that_sleeps_is_not_ready(open_house):
    async with open_house(standalone=True) as house:
        await house.operate("Sleep", level=1)
        assert (await house.http("/readyz"))[0] == 503
