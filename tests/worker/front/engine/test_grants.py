"""A front with --device-grants: it begins in STANDBY, and its engine touches the device under a grant alone."""

from __future__ import annotations

import asyncio

import grpc
import msgspec
import pytest

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.ipc import CommandRequest, State
from dormouse_worker.front.app import Seams
from dormouse_worker.front.testing import VirtualTime
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
STANDBY, READY = pb.WORKER_STATE_STANDBY, pb.WORKER_STATE_READY
MIB = 1 << 20
COLD = {"device_grants": True, "ready": False}
WORDS = {"slot": "pool-0", "slot_epoch": 7, "budget_bytes": 100 * MIB, "device": "gpu.example.com/node/gpu-1"}


async def grant(house, **fields):
    return await house.operate("GrantDevice", **{**WORDS, **fields})


async def rise(house, **fields):
    """Grant, wake and agree."""
    await grant(house, **fields)
    await house.operate("WakeUp")
    return await house.make_ready()


@pytest.fixture
async def pooled(open_house):
    """A front in STANDBY that waits for its grant."""
    async with open_house(**COLD) as house:
        yield house


@pytest.fixture
async def granted(pooled):
    """One that serves under its grant."""
    await rise(pooled)
    return pooled


async def test_it_begins_without_an_engine(pooled):
    status = await pooled.operate("GetStatus")
    assert (status.state, status.sleep_level, status.needs_grant) == (STANDBY, 3, True)
    assert (status.HasField("grant"), status.HasField("report"), status.residual_bytes) == (False, False, 0)
    assert not pooled.engine.is_spawned
    assert await pooled.http("/healthz") == (200, "ok\n")


async def test_an_engine_is_started_within_the_grant(granted):
    assert await granted.tokens() == [1, 2, 3, 1]
    (settings,) = granted.started
    assert (settings.device_memory_budget_bytes, settings.expected_device) == (100 * MIB, WORDS["device"])


async def test_the_next_engine_is_started_within_the_next_grant(granted):
    await granted.operate("Sleep", level=3)
    await rise(granted, slot_epoch=9, budget_bytes=0, device="")
    assert [settings.device_memory_budget_bytes for settings in granted.started] == [100 * MIB, 0]
    assert granted.started[1].expected_device == ""


async def test_an_engine_whose_device_nobody_has_measured_is_started_beside_what_is_kept_for_others(granted):
    await granted.operate("Sleep", level=3)
    await rise(granted, slot_epoch=9, budget_bytes=0, reserved_bytes=7 * MIB, awake_per_slot=2)
    settings = granted.started[1]
    words = (settings.device_memory_budget_bytes, settings.device_memory_reserve_bytes, settings.device_memory_sharers)
    assert words == (0, 7 * MIB, 2)
    told = (await granted.operate("GetStatus")).grant
    assert (told.reserved_bytes, told.awake_per_slot) == (7 * MIB, 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"slot": "x" * 1025}, "slot has 1025 characters; allowed are 1024"),
        ({"device": "x" * 1025}, "device has 1025 characters; allowed are 1024"),
        ({"budget_bytes": 2**63}, "budget_bytes is 9223372036854775808; allowed are 0 "),
        ({"reserved_bytes": 2**63}, "reserved_bytes is 9223372036854775808; allowed are 0 "),
        ({"awake_per_slot": 257}, "awake_per_slot is 257; allowed are 0 to 256"),
        ({"slot_epoch": 2**63}, "slot_epoch is 9223372036854775808; allowed are 0 to 9223372036854775807"),
        ({"slot_epoch": 0}, "slot_epoch is 0; the first holder of a slot has 1"),
    ],
)
async def test_a_grant_that_no_pool_can_give_is_refused_by_field(pooled, fields, words):
    refused = await pooled.refusal(grant(pooled, **fields))
    assert (refused.code(), words in refused.details()) == (Code.INVALID_ARGUMENT, True)
    assert not (await pooled.operate("GetStatus")).HasField("grant")


async def test_an_epoch_of_a_revocation_is_bounded_too(pooled):
    refused = await pooled.refusal(pooled.operate("RevokeDevice", slot_epoch=2**63))
    assert refused.code() is Code.INVALID_ARGUMENT


async def test_an_engine_that_dies_asleep_is_not_started_beside_who_is_awake(granted):
    await granted.operate("Sleep", level=1)
    granted.engine.die(-9)
    await granted.until_state(State.STANDBY)
    status = await granted.operate("GetStatus")
    assert (status.engine_failures, status.last_engine_failure.reason) == (1, "EngineDied")
    assert status.grant.slot_epoch == 7
    await granted.operate("RevokeDevice", slot_epoch=7)
    assert len(granted.engines) == 1
    await rise(granted, slot_epoch=8)
    assert len(granted.engines) == 2


async def test_one_that_dies_awake_is_started_again_under_its_grant(open_house):
    time = VirtualTime()
    seams = Seams(clock=time, sleep=time.sleep, warms_templates=False)
    async with open_house(**COLD, seams=seams, max_engine_restarts=1) as house:
        await rise(house)
        house.engine.die(-9)
        await time.until_nap(0.0)
        refused = await house.refusal(house.operate("RevokeDevice", slot_epoch=8))
        assert "holds memory" in refused.details(), "another one is about to"
        time.advance(0.0)
        await house.until_spawned(2)
        assert (await house.make_ready()).state == READY
        assert house.started[1] == house.started[0]


async def test_a_wake_that_is_prepared_is_given_back_with_the_grant(granted):
    await granted.operate("Sleep", level=1)
    await granted.operate("PrepareWakeUp")
    await granted.operate("RevokeDevice", slot_epoch=8)
    assert [type(command).__name__ for command in granted.engine.engine.commands[-2:]] == ["PrepareWakeUp", "Sleep"]


async def test_a_grant_is_not_taken_back_under_a_wake_that_begins(open_house):
    async with open_house(Script(hangs_at="prepare_wake_up"), **COLD) as house:
        await rise(house)
        await house.operate("Sleep", level=1)
        hanging = asyncio.create_task(house.operate("PrepareWakeUp"))
        await house.engine.until_received(
            lambda message: isinstance(message, CommandRequest) and message.command.method == "prepare_wake_up"
        )
        refused = await house.refusal(house.operate("RevokeDevice", slot_epoch=8))
        assert (refused.code(), "RevokeDevice has to wait" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        assert (await house.operate("GetStatus")).grant.slot_epoch == 7
        await house.operate("Sleep", level=3)
        assert (await house.refusal(hanging)).code() is Code.UNAVAILABLE


async def test_a_part_that_is_awake_keeps_the_grant(granted):
    await granted.operate("Sleep", level=1)
    granted.engine.say(msgspec.structs.replace(granted.engine.engine.status, sleeping_tags=("kv_cache",)))
    await granted.front.worker.changes.until(lambda: len(granted.front.worker.board.engine.sleeping_tags) == 1)
    refused = await granted.refusal(granted.operate("RevokeDevice", slot_epoch=8))
    assert "of weights and kv_cache" in refused.details()


async def test_what_a_wake_lacks_is_told_until_one_is_not_refused(open_house):
    async with open_house(Script(missing_bytes=5), **COLD) as house:
        await rise(house)
        await house.operate("Sleep", level=1)
        assert (await house.operate("PrepareWakeUp")).missing_bytes == 5
        status = await house.operate("GetStatus")
        assert (status.refused_slot_epoch, status.missing_bytes) == (7, 5)
        status = await house.operate("WakeUp")
        assert (status.state, status.refused_slot_epoch, status.missing_bytes) == (READY, 7, 0)


@pytest.mark.parametrize("method", ["prepare_wake_up", "wake_up", "sleep"])
async def test_an_engines_refusal_is_remembered_with_the_epoch(open_house, method):
    script = Script(refusals={method: ("InsufficientMemory", "no room")})
    async with open_house(script, **COLD) as house:
        await rise(house)
        if method != "sleep":
            await house.operate("Sleep", level=1)
        call = "".join(part.capitalize() for part in method.split("_"))
        await house.refusal(house.operate(call, **({"level": 1} if method == "sleep" else {})))
        assert (await house.operate("GetStatus")).refused_slot_epoch == 7


async def test_requests_that_run_are_no_refusal(open_house):
    async with open_house(**COLD, drain_timeout_s=0.05) as house:
        await rise(house)
        call = await house.begin_request()
        await house.refusal(house.operate("Sleep", level=1))
        assert (await house.operate("GetStatus")).refused_slot_epoch == 0
        call.cancel()


async def test_a_swap_is_refused_by_name(granted, other):
    refused = await granted.refused_swap(other, "--device-grants")
    assert (refused.code(), "SwapEngine: a worker with --device-grants" in refused.details()) == (
        Code.FAILED_PRECONDITION,
        True,
    )
    assert await granted.tokens() == [1, 2, 3, 1]


async def test_another_run_of_the_container_has_another_name_and_knows_nothing(open_house):
    async with open_house(**COLD, seams=Seams(warms_templates=False)) as first:
        name = (await first.operate("GetStatus")).instance
        await grant(first, instance=name)
    async with open_house(**COLD, seams=Seams(warms_templates=False)) as second:
        refused = await second.refusal(grant(second, instance=name))
        assert (refused.code(), "it restarted" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        status = await second.operate("GetStatus")
        assert (status.instance != name, status.HasField("grant")) == (True, False)


async def test_a_model_that_can_not_be_read_fails_before_anybody_grants(open_house, tmp_path):
    async with open_house(**COLD, path=tmp_path) as house:
        assert (await house.operate("GetStatus")).failure.reason == "ModelInvalid"
        await grant(house)
        refused = await house.refusal(house.operate("WakeUp"))
        assert (refused.code(), "the worker is failed" in refused.details()) == (Code.FAILED_PRECONDITION, True)


async def test_without_the_flag_there_is_nothing_to_grant(house):
    for method, fields in (("GrantDevice", WORDS), ("RevokeDevice", {"slot_epoch": 7})):
        refused = await house.refusal(house.operate(method, **fields))
        assert refused.code() is Code.FAILED_PRECONDITION
        assert refused.details() == f"{method}: this worker was started without --device-grants"
    status = await house.operate("GetStatus")
    assert (status.needs_grant, status.HasField("grant"), len(status.instance)) == (False, False, 32)
