"""Reads what the operator asks a worker for: how deep to sleep, what to wake, what engine to swap for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.commands import LEVELS, STANDBY_LEVEL, TAGS, Sleep
from dormouse_worker.front.conduct.swap import SwapOrder


def read_sleep(request: pb.PrepareSleepRequest | pb.SleepRequest) -> Sleep | None:
    """Return what the engine is asked for, None for its end: STANDBY. Raises CallError INVALID_ARGUMENT."""
    tags = read_tags(request.tags)
    if request.level in LEVELS:
        return Sleep(request.level, tags)
    if request.level != STANDBY_LEVEL:
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"level is {request.level}; allowed: 1 (weights stay in host memory), 2 (they are dropped) and "
            "3 (the engine process ends)",
        )
    if tags != TAGS:
        words = f"tags is {list(tags)}, level is 3, which ends the engine process: leave tags empty"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, words)
    return None


def must_abort(request: pb.PrepareSleepRequest | pb.SleepRequest) -> bool:
    """Return whether what runs shall be ended, not waited for."""
    return request.mode == pb.DRAIN_MODE_ABORT


def read_swap(request: pb.SwapEngineRequest) -> SwapOrder:
    """Return what is asked for. Raises CallError INVALID_ARGUMENT."""
    timeout_s = request.timeout_seconds
    if not (math.isfinite(timeout_s) and timeout_s >= 0):
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"timeout_seconds is {timeout_s:g}; allowed: seconds above 0, or 0 for the new --engine-load-timeout",
        )
    return SwapOrder(tuple(request.arguments), request.settings_digest, timeout_s)


def read_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags in the order in which they wake; none = all. Raises CallError INVALID_ARGUMENT."""
    if not set(tags) <= set(TAGS):
        words = f"tags is {sorted(tags)}; allowed: none, or some of {', '.join(TAGS)}"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, words)
    return tuple(tag for tag in TAGS if tag in tags) or TAGS
