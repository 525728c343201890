"""What a caller wrote of a grant, checked. Pure."""

from __future__ import annotations

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.front.engine.grant import DeviceGrant

MAX_SLOT_EPOCH = 2**63 - 1  # what the status of a pool has room for: none could outrank a higher one
MAX_BYTES = 2**63 - 1
MAX_AWAKE = 256  # as many pods as may use one claim
MAX_NAME = 1024  # characters of a slot's name, or of a device's


def read_grant(request: pb.GrantDeviceRequest) -> DeviceGrant:
    """Return what is granted. Raises CallError INVALID_ARGUMENT naming field, value and limit."""
    for field, text in (("slot", request.slot), ("device", request.device)):
        if len(text) > MAX_NAME:
            raise _invalid(f"{field} has {len(text)} characters; allowed are {MAX_NAME}")
    for field, num_bytes in (("budget_bytes", request.budget_bytes), ("reserved_bytes", request.reserved_bytes)):
        if num_bytes > MAX_BYTES:
            raise _invalid(f"{field} is {num_bytes}; allowed are 0 (no bound) to {MAX_BYTES}")
    if request.awake_per_slot > MAX_AWAKE:
        raise _invalid(f"awake_per_slot is {request.awake_per_slot}; allowed are 0 to {MAX_AWAKE}")
    if request.slot_epoch == 0:
        raise _invalid("slot_epoch is 0; the first holder of a slot has 1")
    return DeviceGrant(
        slot=request.slot,
        slot_epoch=read_slot_epoch(request.slot_epoch),
        budget_bytes=request.budget_bytes,
        device=request.device,
        reserved_bytes=request.reserved_bytes,
        awake_per_slot=request.awake_per_slot or 1,
    )


def read_slot_epoch(slot_epoch: int) -> int:
    """Return it. Raises CallError INVALID_ARGUMENT for one that no pool can have."""
    if slot_epoch > MAX_SLOT_EPOCH:
        raise _invalid(f"slot_epoch is {slot_epoch}; allowed are 0 to {MAX_SLOT_EPOCH}")
    return slot_epoch


def _invalid(message: str) -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, message)
