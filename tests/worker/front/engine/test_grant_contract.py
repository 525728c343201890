"""What the operator counts on of a worker with --device-grants: the real front and the operator's fake, over gRPC."""

from __future__ import annotations

from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from dormouse_api.names import Role
from dormouse_api.testing_tickets import OPERATOR_SEED, POD_UID, proof
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.grpc import serve
from dormouse_operator.testing.pooled import PooledWorker

STANDBY, READY, ASLEEP = pb.WORKER_STATE_STANDBY, pb.WORKER_STATE_READY, pb.WORKER_STATE_ASLEEP
RISING = {pb.WORKER_STATE_STARTING, pb.WORKER_STATE_LOADING, pb.WORKER_STATE_PROFILED}
GRANT = {"slot": "pool-0", "slot_epoch": 7, "budget_bytes": 2**30, "device": "gpu-0"}


class Door:
    """A worker's control port, in the operator's role."""

    def __init__(self, channel, finish_loading):
        self._stub = rpc.WorkerControlStub(channel)
        self._finish_loading = finish_loading

    async def __call__(self, method, **fields):
        request = pb.GetStatusRequest() if method == "GetStatus" else getattr(pb, f"{method}Request")(**fields)
        return await getattr(self._stub, method)(request, timeout=90, metadata=proof(Role.OPERATOR))

    async def refused(self, method, **fields):
        """Have a call refused for the worker's state, with nothing changed but what tells of the refusal."""
        before = await self("GetStatus")
        with pytest.raises(aio.AioRpcError) as caught:
            await self(method, **fields)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        after = await self("GetStatus")
        before.refused_slot_epoch = after.refused_slot_epoch
        assert after == before
        return caught.value.details()

    async def rise(self, **fields):
        """Grant, wake and agree."""
        await self("GrantDevice", **{**GRANT, **fields})
        assert (await self("WakeUp")).state in RISING
        await self._finish_loading()
        return await self("InitializeCache", num_gpu_blocks=40)


@asynccontextmanager
async def open_fake(_):
    worker = PooledWorker(POD_UID, "abcd1234", state=WorkerState.STANDBY, sleep_level=3)

    async def finish_loading():
        worker.finish_loading()

    async with serve(worker, OPERATOR_SEED) as port, aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Door(channel, finish_loading)


@asynccontextmanager
async def open_front(open_house):
    async with open_house(device_grants=True, ready=False, pod_uid=POD_UID) as house:
        yield Door(house.control, lambda: house.operate("DetermineNumAvailableBlocks"))


@pytest.fixture(params=[open_front, open_fake])
async def door(request, open_house):
    async with request.param(open_house) as door:
        yield door


async def test_it_begins_in_standby_and_needs_a_grant(door):
    status = await door("GetStatus")
    assert (status.state, status.sleep_level, status.needs_grant) == (STANDBY, 3, True)
    assert (status.HasField("grant"), status.HasField("report"), bool(status.instance)) == (False, False, True)


@pytest.mark.parametrize(
    ("method", "fields"), [("WakeUp", {}), ("PrepareWakeUp", {}), ("InitializeCache", {"num_gpu_blocks": 1})]
)
async def test_without_a_grant_nothing_takes_memory(door, method, fields):
    assert "grant of" in await door.refused(method, **fields)


async def test_a_grant_is_told_and_may_be_repeated(door):
    instance = (await door("GetStatus")).instance
    for _ in range(2):
        grant = (await door("GrantDevice", **GRANT, instance=instance)).grant
        assert (grant.slot, grant.slot_epoch, grant.budget_bytes, grant.device) == tuple(GRANT.values())


@pytest.mark.parametrize(
    "fields",
    [{"slot_epoch": 6}, {"instance": "another"}, {"slot": "pool-1"}, {"budget_bytes": 1}, {"device": "gpu-1"}],
)
async def test_a_grant_that_is_older_for_another_or_of_other_words_changes_nothing(door, fields):
    await door("GrantDevice", **GRANT)
    await door.refused("GrantDevice", **{**GRANT, **fields})


@pytest.mark.parametrize("slot_epoch", [7, 8])
async def test_a_grant_that_was_taken_back_does_not_come_again(door, slot_epoch):
    await door("GrantDevice", **GRANT)
    assert not (await door("RevokeDevice", slot_epoch=slot_epoch)).HasField("grant")
    assert not (await door("RevokeDevice", slot_epoch=slot_epoch)).HasField("grant")
    await door.refused("GrantDevice", **GRANT)
    assert (await door("GrantDevice", **{**GRANT, "slot_epoch": 9})).grant.slot_epoch == 9


async def test_the_way_up_may_be_asked_for_again_and_keeps_the_grant(door):
    await door("GrantDevice", **GRANT)
    await door("WakeUp")
    assert (await door("PrepareWakeUp")).missing_bytes == 0
    assert (await door("WakeUp")).state in RISING
    await door.refused("RevokeDevice", slot_epoch=8)


async def test_who_serves_keeps_the_grant_and_who_sleeps_until_it_is_taken_back(door):
    assert (await door.rise()).state == READY
    await door.refused("RevokeDevice", slot_epoch=8)
    status = await door("Sleep", level=1)
    assert (status.state, status.grant.slot_epoch) == (ASLEEP, 7)
    assert not (await door("RevokeDevice", slot_epoch=8)).HasField("grant")
    await door.refused("WakeUp")
    await door("GrantDevice", **{**GRANT, "slot_epoch": 9})
    assert (await door("WakeUp")).state == READY


async def test_the_end_of_the_engine_keeps_what_was_measured_until_the_next_one(door):
    await door.rise()
    status = await door("Sleep", level=3)
    assert (status.state, status.sleep_level, status.grant.slot_epoch) == (STANDBY, 3, 7)
    assert (status.HasField("report"), status.num_gpu_blocks, status.residual_bytes) == (True, 0, 0)
    for level in (1, 2, 3):
        await door("PrepareSleep", level=level)
        assert (await door("Sleep", level=level)).state == STANDBY
    assert not (await door("RevokeDevice", slot_epoch=8)).HasField("grant")
    assert (await door.rise(slot_epoch=9)).state == READY
