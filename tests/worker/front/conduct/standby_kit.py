"""A front that is ordered into STANDBY and out of it."""

from __future__ import annotations

import grpc

from dormouse_api.v1 import worker_control_pb2 as pb

Code = grpc.StatusCode
STANDBY, READY = pb.WORKER_STATE_STANDBY, pb.WORKER_STATE_READY


async def stand_by(house, **fields):
    return await house.operate("Sleep", level=3, **fields)


async def wake(house):
    """Have another engine started and agreed with."""
    number = len(house.engines) + 1
    assert (await house.operate("WakeUp")).state == pb.WORKER_STATE_STARTING
    await house.until_spawned(number)
    return await house.make_ready()
