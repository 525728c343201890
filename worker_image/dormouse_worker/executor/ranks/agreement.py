"""What ranks must have in common, and what follows from all of their reports together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from dormouse_worker.common import errors
from dormouse_worker.common.errors import RanksDisagree, WorkerError
from dormouse_worker.common.ipc import NATIVE, MemoryReport, ModelInfo
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.executor.ranks.messages import Answer

T = TypeVar("T")
ECHOES = ("PeerFailed", "RankLost")  # what a rank raises that another one let down


class RankFailed(Exception):
    """A rank raised what nobody foresaw; its log has the traceback."""


def to_error(name: str, answer: Answer) -> Exception:
    """Return the error of this rank: of the worker's own class where it is one, the rank's name before its words."""
    known = getattr(errors, answer.error, None)
    if isinstance(known, type) and issubclass(known, WorkerError):
        return known(f"{name}: {answer.message}")
    return RankFailed(f"{name}: {answer.error}: {answer.message}")


def culprit(failed: Mapping[int, Answer]) -> int:
    """Return the first rank that failed by itself, not because of another; the first of all if none did."""
    return min(failed, key=lambda rank: (failed[rank].error in ECHOES, rank))


def require_same(values: Mapping[str, T], what: str) -> T:
    """Return what all ranks say, by their names. Raises RanksDisagree naming one that differs, and both values."""
    (first, expected), *others = values.items()
    for name, value in others:
        if value != expected:
            raise RanksDisagree(f"{name}: its {what} is {value}, that of {first} is {expected}")
    return expected


def require_alike(reports: Mapping[str, MemoryReport]) -> None:
    """Raise RanksDisagree unless the reports speak of blocks of one size and of sequences of one length."""
    for field, words in (("block_size", "block size"), ("max_model_len", "model length")):
        require_same({name: getattr(report, field) for name, report in reports.items()}, words)


def fewest_blocks(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return how many blocks every rank has, on its device and in host memory."""
    on_devices, in_host = zip(*counts, strict=True)
    return min(on_devices), min(in_host)


def group_report(reports: Iterable[MemoryReport]) -> MemoryReport:
    """Return the report that holds for the group: of the rank with the fewest blocks on its device."""
    known = list(reports)
    tightest = min(known, key=lambda report: (report.num_gpu_blocks, report.rank))
    num_cpu_blocks = min(report.num_cpu_blocks for report in known)
    return msgspec.structs.replace(tightest, num_cpu_blocks=num_cpu_blocks, seconds=max(r.seconds for r in known))


def group_model(models: Mapping[str, ModelInfo]) -> ModelInfo:
    """Return what the group has loaded: one dtype, all ranks' bytes. Raises RanksDisagree.

    Our kernels say everything to other ranks in float32, torch's pass in the model's type: both would not understand
    each other.
    """
    require_same({name: model.dtype for name, model in models.items()}, "dtype")
    paths = {name: model.compute_path for name, model in models.items()}
    if len({path.partition(" ")[0] == NATIVE for path in paths.values()}) > 1:
        require_same(paths, "compute path")
    known = list(models.values())
    return msgspec.structs.replace(
        known[0],
        load_bytes=sum(model.load_bytes for model in known),
        load_seconds=max(model.load_seconds for model in known),
    )


def group_sleep(reports: Iterable[SleepReport]) -> SleepReport:
    """Return what a sleep of all ranks gave: their bytes together, the longest time of each phase."""
    known = list(reports)
    return SleepReport(
        freed_bytes=sum(report.freed_bytes for report in known),
        residual_bytes=sum(report.residual_bytes for report in known),
        host_copy_bytes=sum(report.host_copy_bytes for report in known),
        phases=longest(report.phases for report in known),
    )


def group_wake(reports: Iterable[WakeReport]) -> WakeReport:
    """Return what a wake of all ranks took: the longest time of each phase."""
    return WakeReport(longest(report.phases for report in reports))


def longest(phases: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the longest time of each phase: ranks go through them at the same time."""
    most: dict[str, float] = {}
    for known in phases:
        most.update({name: max(seconds, most.get(name, 0.0)) for name, seconds in known.items()})
    return most


def by_name(answers: Mapping[int, Answer], name: Callable[[int], str], kind: type[T]) -> dict[str, T]:
    """Return the answers' values, by the ranks' names. Raises msgspec.ValidationError for a value of another type."""
    return {name(rank): msgspec.msgpack.decode(answer.value, type=kind) for rank, answer in answers.items()}
