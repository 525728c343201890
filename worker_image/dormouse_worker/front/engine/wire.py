"""Between what is known of the engine and protobuf's messages. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.ipc import CommandResult, MemoryReport, RankStatus
from dormouse_worker.front.engine.losses import EngineLosses
from dormouse_worker.front.engine.status_board import Failure, StatusBoard

COMMAND_CODES = {
    "InvalidArgument": grpc.StatusCode.INVALID_ARGUMENT,
    "WrongState": grpc.StatusCode.FAILED_PRECONDITION,
    "InsufficientMemory": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "StorageFull": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ModelChanged": grpc.StatusCode.FAILED_PRECONDITION,
    "InvalidSettings": grpc.StatusCode.FAILED_PRECONDITION,
    "AdapterNotFound": grpc.StatusCode.NOT_FOUND,
    "AdapterInvalid": grpc.StatusCode.INVALID_ARGUMENT,
    "PickleRefused": grpc.StatusCode.INVALID_ARGUMENT,
    "AdapterLimit": grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker says of itself that never changes."""

    pod_uid: str
    settings_digest: str
    model_digest: str
    version: str
    capabilities: tuple[str, ...] = ()  # beyond what every worker can


@dataclass(frozen=True, slots=True)
class Counts:
    """What moves with every request."""

    epoch: int
    accepted: int
    running: int
    waiting: int


def to_report(report: MemoryReport) -> control.MemoryReport:
    """Return the report; the fields have the same names."""
    return control.MemoryReport(**{name: getattr(report, name) for name in report.__struct_fields__})


def to_rank(rank: RankStatus) -> control.RankStatus:
    """Return what is known of one rank of a group."""
    return control.RankStatus(rank=rank.rank, pod=rank.pod, report=to_report(rank.report) if rank.report else None)


def to_failure(failure: Failure) -> control.Failure:
    """Return the failure."""
    return control.Failure(reason=failure.reason, message=failure.message)


def tell_losses(status: control.WorkerStatus, losses: EngineLosses) -> None:
    """Write into a status how engines ended."""
    if losses.failure is not None:
        status.last_engine_failure.CopyFrom(to_failure(losses.failure))
        status.last_engine_failure_unix_seconds = losses.failed_at.timestamp() if losses.failed_at else 0.0
        status.engine_failures = losses.num_losses


def to_status(board: StatusBoard, identity: Identity, counts: Counts) -> control.WorkerStatus:
    """Return everything that holds now."""
    engine, failure = board.engine, board.failure
    return control.WorkerStatus(
        state=control.WorkerState.Value(f"WORKER_STATE_{board.state}"),
        pod_uid=identity.pod_uid,
        settings_digest=identity.settings_digest,
        epoch=counts.epoch,
        request_counter=counts.accepted,
        running_requests=counts.running,
        waiting_requests=counts.waiting,
        report=to_report(engine.report) if engine.report is not None else None,
        num_gpu_blocks=engine.num_gpu_blocks,
        num_cpu_blocks=engine.num_cpu_blocks,
        sleep_level=engine.sleep_level,
        residual_bytes=engine.residual_bytes,
        freed_bytes=engine.freed_bytes,
        failure=to_failure(failure) if failure else None,
        last_sleep_seconds=engine.last_sleep_seconds,
        last_wake_seconds=engine.last_wake_seconds,
        model_digest=identity.model_digest,
        version=identity.version,
        capabilities=identity.capabilities,
        sleeping_tags=engine.sleeping_tags,
        last_sleep_phases=engine.sleep_phases,
        last_wake_phases=engine.wake_phases,
        host_copy_bytes=engine.host_copy_bytes,
        ranks=[to_rank(rank) for rank in engine.ranks],
        compute_path=engine.model.compute_path if engine.model is not None else "",
    )


def to_error(method: str, result: CommandResult) -> CallError:
    """Return the status for a command that the engine refused."""
    code = COMMAND_CODES.get(result.error_reason, grpc.StatusCode.INTERNAL)
    return CallError(code, f"{method}: {result.error_message} ({result.error_reason})")
