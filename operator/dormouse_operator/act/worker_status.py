"""What a worker says of itself, from the wire to the operator's noun; numbers that cannot be are refused. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dormouse_api.capabilities import Capability
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_operator.errors import WorkerRefused
from dormouse_operator.model import DeviceGrant, Download, Failure, Report, SleepLevel, Worker, WorkerState

# the largest numbers that the status of a deployment has room for, and the last second that has a date
_MOST = {
    FieldDescriptor.CPPTYPE_UINT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_DOUBLE: int(datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()),
    FieldDescriptor.CPPTYPE_ENUM: max(pb.WorkerState.values()),
}


_NEEDED: Mapping[SleepLevel, Capability] = {
    1: Capability.SLEEP_LEVEL_1,
    2: Capability.SLEEP_LEVEL_2,
    3: Capability.STANDBY,
}


def parse_worker(status: pb.WorkerStatus) -> Worker:
    """Return what a worker says as the operator's noun. Raises WorkerRefused for a number that cannot be."""
    for name, value, most in _numbers(status):
        if not 0 <= value <= most:  # NaN is neither
            raise WorkerRefused(f"its status says that {name} is {value}; possible are 0 to {most}")
    state = pb.WorkerState.Name(status.state).removeprefix("WORKER_STATE_")
    failure = status.failure if status.HasField("failure") else None
    died = status.last_engine_failure if status.HasField("last_engine_failure") else None
    return Worker(
        state=WorkerState.STARTING if state == "UNSPECIFIED" else WorkerState(state),
        pod_uid=status.pod_uid,
        settings_digest=status.settings_digest,
        epoch=status.epoch,
        running_requests=status.running_requests,
        report=_parse_report(status.report) if status.HasField("report") else None,
        rank_reports=tuple(
            replace(_parse_report(rank.report), rank=rank.rank) for rank in status.ranks if rank.HasField("report")
        ),
        num_gpu_blocks=status.num_gpu_blocks,
        num_cpu_blocks=status.num_cpu_blocks,
        residual_bytes=status.residual_bytes,
        freed_bytes=status.freed_bytes,
        host_copy_bytes=status.host_copy_bytes,
        failure=Failure(failure.reason, failure.message) if failure else None,
        engine_failures=status.engine_failures,
        last_engine_failure=Failure(died.reason, died.message) if died else None,
        engine_failed=datetime.fromtimestamp(status.last_engine_failure_unix_seconds, UTC) if died else None,
        last_sleep_s=status.last_sleep_seconds,
        last_wake_s=status.last_wake_seconds,
        sleep_level=status.sleep_level,
        request_counter=status.request_counter,
        swapping_to=status.swapping_to,
        instance=status.instance,
        grant=_parse_grant(status.grant) if status.HasField("grant") else None,
        needs_grant=status.needs_grant,
        refused_slot_epoch=status.refused_slot_epoch,
        missing_bytes=status.missing_bytes,
        adapters_digest=status.loras_digest,
        adapters_version=status.loras_version,
        sleep_levels=_claimed_levels(status.capabilities),
        download=_parse_download(status.download) if status.HasField("download") else None,
    )


def _claimed_levels(claimed: Collection[str]) -> tuple[SleepLevel, ...]:
    """Return the levels that a worker claims. One of before there were claims has all, or refuses by itself."""
    return tuple(level for level, needed in _NEEDED.items() if not claimed or needed in claimed)


def _parse_grant(grant: pb.DeviceGrant) -> DeviceGrant:
    return DeviceGrant(
        slot=grant.slot,
        slot_epoch=grant.slot_epoch,
        budget_bytes=grant.budget_bytes,
        device=grant.device,
        reserved_bytes=grant.reserved_bytes,
        awake_per_slot=grant.awake_per_slot or 1,
    )


def _parse_download(download: pb.Download) -> Download:
    return Download(download.done_bytes, download.total_bytes)


def _numbers(message: Message, path: str = "") -> Iterator[tuple[str, float, int]]:
    """Yield name, value and bound of each number that is set; not of the epoch, by which `condemned` knows a worker."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if field.cpp_type in _MOST and not field.is_repeated and name != "epoch":
            yield name, value, _MOST[field.cpp_type]
        elif isinstance(value, Message):
            yield from _numbers(value, f"{name}.")
        elif name == "ranks":
            for rank in value:
                yield from _numbers(rank, f"{name}.")


def _parse_report(report: pb.MemoryReport) -> Report:
    return Report(
        rank=report.rank,
        num_gpu_blocks=report.num_gpu_blocks,
        num_cpu_blocks=report.num_cpu_blocks,
        block_size=report.block_size,
        block_bytes=report.block_bytes,
        total_bytes=report.total_bytes,
        max_model_len=report.max_model_len,
        device=report.device,
        limited_by=report.limited_by,
        has_cache=_has_cache(report),
    )


def _has_cache(report: pb.MemoryReport) -> bool:
    """Return False where it was measured and blocks have no bytes: no memory would bring one, and none is needed."""
    return bool(report.num_gpu_blocks or report.block_bytes or not report.total_bytes)
