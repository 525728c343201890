"""Sleep level 3 ends the engine process from every state; a wake starts another, agreed with as at the start."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.status import retry_after_s
from dormouse_worker.common.group import GroupPlace
from dormouse_worker.common.ipc import State
from tests.worker.front.conduct.standby_kit import READY, STANDBY, Code, stand_by, wake


async def take_into(house, state):
    """Take a worker that is READY into another state."""
    if state is State.DRAINING:
        await house.operate("Drain")
    elif state is State.ASLEEP:
        await house.operate("Sleep", level=1)


@pytest.mark.parametrize("state", [State.READY, State.DRAINING, State.ASLEEP])
async def test_the_engine_ends_nothing_is_held_and_a_wake_starts_another(house, state):
    await take_into(house, state)
    status = await stand_by(house)
    assert (status.state, status.sleep_level, list(status.sleeping_tags)) == (STANDBY, 3, ["weights", "kv_cache"])
    assert (status.residual_bytes, status.host_copy_bytes, status.num_gpu_blocks) == (0, 0, 0)
    assert status.report.num_gpu_blocks == 100  # what was measured is still so
    assert not house.front.worker.link.is_alive
    assert (status.engine_failures, status.failure.reason, status.last_engine_failure.reason) == (0, "", "")
    assert (await wake(house)).state == READY
    assert len(house.engines) == 2
    assert await house.tokens() == [1, 2, 3, 1]


async def test_a_worker_that_starts_in_standby_has_its_first_engine_with_a_wake(open_house):
    async with open_house(starts_in_standby=True, ready=False) as house:
        status = await house.operate("GetStatus")
        assert (status.state, status.sleep_level, status.needs_grant) == (STANDBY, 3, False)
        assert not house.engine.is_spawned
        await house.operate("WakeUp")
        await house.until_spawned(1)
        assert (await house.make_ready()).state == READY
        assert await house.tokens() == [1, 2, 3, 1]


async def test_it_repeats_without_effect_and_lighter_levels_change_nothing(house):
    before = await stand_by(house)
    for level in (1, 2, 3):
        assert (await house.operate("PrepareSleep", level=level)).request_counter == 0
        assert await house.operate("Sleep", level=level) == before
    assert len(house.engines) == 1


async def test_in_standby_the_processes_beside_the_front_end(house):
    ended = asyncio.Event()
    house.front.worker.served.rest = ended.set
    await stand_by(house)
    await ended.wait()


async def test_in_standby_a_wake_has_nothing_to_reserve(house):
    await stand_by(house)
    assert (await house.operate("PrepareWakeUp")).missing_bytes == 0
    assert (await house.operate("GetStatus")).state == STANDBY


async def test_a_wake_can_be_repeated_on_the_way(house):
    await stand_by(house)
    for _ in range(3):
        await house.operate("PrepareWakeUp")
        await house.operate("WakeUp")
    await house.until_spawned(2)
    assert (await house.operate("WakeUp")).refused_slot_epoch == 0
    await house.make_ready()
    assert len(house.engines) == 2


async def test_a_worker_in_standby_is_alive_and_serves_nobody(house):
    await stand_by(house)
    refused = await house.refusal(house.generate().read())
    assert (refused.code(), refused.details()) == (Code.UNAVAILABLE, "the worker is in standby")
    assert retry_after_s(refused) == 5.0
    assert await house.inference_health() == "NOT_SERVING"
    assert await house.http("/healthz") == (200, "ok\n")
    assert await house.http("/readyz") == (200, "the worker is in standby; the readiness gate is closed\n")
    assert (await house.operate("CheckHealth")).seconds_since_step == 0
    assert (await house.tokenize("hi")).token_ids
    metrics = (await house.http("/metrics"))[1]
    assert 'vllm:engine_sleep_state{model_name="tiny",sleep_state="standby"} 1.0' in metrics
    assert 'dormouse_engine_silence_seconds{model_name="tiny"} 0.0' in metrics


NEEDS_ENGINE = {
    "InitializeCache": {"num_gpu_blocks": 1},
    "SaveShardedState": {"directory": "/x"},
    "StartProfile": {},
    "StopProfile": {},
}


@pytest.mark.parametrize("method", NEEDS_ENGINE)
async def test_what_needs_an_engine_is_refused_by_name(open_house, tmp_path, method):
    async with open_house(profiler_dir=str(tmp_path)) as house:
        await stand_by(house)
        refused = await house.refusal(house.operate(method, **NEEDS_ENGINE[method]))
        assert (refused.code(), refused.details().startswith(method)) == (Code.FAILED_PRECONDITION, True)
        assert "the worker is in standby" in refused.details()


async def test_a_swap_needs_an_engine_to_exchange(house, other):
    await stand_by(house)
    refused = await house.refused_swap(other)
    assert (refused.code(), "the worker is in standby" in refused.details()) == (Code.FAILED_PRECONDITION, True)
    assert len(house.engines) == 1


async def test_where_there_is_no_cache_forgetting_it_is_done(house):
    await stand_by(house)
    await house.operate("ResetPrefixCache")
    await house.operate("ResetMultimodalCache")
    assert (await house.operate("GetStatus")).state == STANDBY


async def test_parts_can_neither_sleep_nor_wake_apart(house):
    refused = await house.refusal(stand_by(house, tags=["weights"]))
    assert (refused.code(), "level is 3" in refused.details()) == (Code.INVALID_ARGUMENT, True)
    await stand_by(house, tags=["weights", "kv_cache"])
    refused = await house.refusal(house.operate("WakeUp", tags=["weights"]))
    assert (refused.code(), "tags is ['weights']" in refused.details()) == (Code.FAILED_PRECONDITION, True)
    assert (await house.operate("GetStatus")).state == STANDBY


async def test_two_at_once_end_one_engine(house):
    both = await asyncio.gather(stand_by(house), stand_by(house))
    assert [status.state for status in both] == [STANDBY, STANDBY]
    assert (await wake(house)).state == READY


async def test_a_worker_in_standby_ends_at_once(house):
    await stand_by(house)
    await house.operate("Shutdown")
    assert await house.running == 0


async def test_a_group_of_pods_refuses_it_by_name(open_house):
    async with open_house(place=GroupPlace(num_nodes=2, master_addr="leader", master_port=29500)) as house:
        for method in ("PrepareSleep", "Sleep"):
            refused = await house.refusal(house.operate(method, level=3))
            assert (refused.code(), "a group of 2 pods" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        assert (await house.operate("GetStatus")).state == READY


async def test_watchers_see_the_way_in_and_out(house):
    board = house.front.worker.board

    async def watch():
        seen = []
        async for state in house.front.worker.changes.stream(lambda: board.state, min_interval_s=0.0):
            seen.append(state)
            if state is State.READY and State.STARTING in seen:
                return seen
        raise AssertionError("the worker ended")

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await stand_by(house)
    await wake(house)
    way = [State.READY, State.DRAINING, State.STANDBY, State.STARTING]  # what comes next may come at once
    assert (await watching)[: len(way)] == way
