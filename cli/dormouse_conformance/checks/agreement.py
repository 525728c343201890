"""What a worker measures, and the number of blocks that it is told to have."""

from __future__ import annotations

import grpc

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.findings import Blocked, require, require_equal, require_refusal, require_unavailable
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject, agreed, told

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def _report(worker: Subject) -> None:
    worker.profiled()
    report = worker.command("DetermineNumAvailableBlocks")
    require_equal("WorkerStatus.report", report, worker.status().report)


def _adds_up(worker: Subject) -> None:
    worker.profiled()
    report = worker.command("DetermineNumAvailableBlocks")
    taken = report.num_gpu_blocks * report.block_bytes
    seen = f"{report.num_gpu_blocks} x {report.block_bytes} of {report.kv_cache_bytes} of {report.total_bytes} bytes"
    expected = "num_gpu_blocks x block_bytes <= kv_cache_bytes <= total_bytes, and tokens in a block"
    require(taken <= report.kv_cache_bytes <= report.total_bytes and report.block_size, expected, seen)


def _unserved(worker: Subject) -> None:
    worker.profiled()
    require_unavailable(lambda: worker.generate(worker.request()), "Generate before the agreement")
    require_equal("num_gpu_blocks before the agreement", 0, worker.status().num_gpu_blocks)


def _too_many(worker: Subject) -> None:
    reported = worker.profiled().report.num_gpu_blocks
    _refuse_count(worker, reported + 1, naming=(reported, reported + 1))


def _none(worker: Subject) -> None:
    worker.profiled()
    _refuse_count(worker, 0)


def _too_few(worker: Subject) -> None:
    report = worker.profiled().report
    if report.max_model_len <= report.block_size:
        raise Blocked("one block is enough for this model's length")
    _refuse_count(worker, 1)


def _exact(worker: Subject) -> None:
    count = agreed(worker.profiled().report)
    status = worker.command("InitializeCache", num_gpu_blocks=count)
    require_equal("num_gpu_blocks", count, status.num_gpu_blocks)
    require(status.state == control.WORKER_STATE_READY, "READY", told(status))


def _again(worker: Subject) -> None:
    before = worker.ready()
    with worker.running():
        worker.command("InitializeCache", num_gpu_blocks=before.num_gpu_blocks)
        after = worker.status()
    require_equal("num_gpu_blocks", before.num_gpu_blocks, after.num_gpu_blocks)
    require(after.state == control.WORKER_STATE_READY, "READY", told(after))


def _another(worker: Subject) -> None:
    before = worker.ready()
    status = worker.command("InitializeCache", num_gpu_blocks=before.num_gpu_blocks - 1)
    worker.command("InitializeCache", num_gpu_blocks=before.num_gpu_blocks)
    require_equal("num_gpu_blocks", before.num_gpu_blocks - 1, status.num_gpu_blocks)


def _busy(worker: Subject) -> None:
    count = worker.ready().num_gpu_blocks - 1
    with worker.running():
        require_refusal(
            lambda: worker.command("InitializeCache", num_gpu_blocks=count),
            grpc.StatusCode.FAILED_PRECONDITION,
            what="another count while a request runs",
        )


def _refuse_count(worker: Subject, count: int, naming: tuple[int, ...] = ()) -> None:
    """Require that a count is refused, and that the worker waits on for another."""
    require_refusal(
        lambda: worker.command("InitializeCache", num_gpu_blocks=count), INVALID, what=f"{count} blocks", naming=naming
    )
    status = worker.settled()
    require(status.state == control.WORKER_STATE_PROFILED, "PROFILED, as before", told(status))


SECTION = Section(
    "agreement",
    "A worker measures how many KV-cache blocks fit, and waits. The operator takes the smallest report of all workers "
    "and tells it to each with `InitializeCache`: only then a worker serves.",
    (
        Rule(
            "report",
            "`DetermineNumAvailableBlocks` waits while the model loads, and answers what `WorkerStatus.report` "
            "says from then on.",
            _report,
        ),
        Rule(
            "adds-up",
            "The reported blocks fit: `num_gpu_blocks` × `block_bytes` is at most `kv_cache_bytes`, and that is "
            "at most `total_bytes`.",
            _adds_up,
        ),
        Rule(
            "unserved",
            "Nobody is served before the agreement: in PROFILED `Generate` is UNAVAILABLE with RetryInfo, and "
            "`num_gpu_blocks` is 0.",
            _unserved,
        ),
        Rule(
            "too-many",
            "A count above the report is INVALID_ARGUMENT, names both numbers, and leaves the worker PROFILED.",
            _too_many,
        ),
        Rule("none", "A count of 0 is INVALID_ARGUMENT, where the model keeps a cache.", _none),
        Rule("too-few", "So is a count that does not hold the longest request that the model takes.", _too_few),
        Rule("exact", "With the agreed count the worker allocates exactly so many blocks and is READY.", _exact),
        Rule("again", "The same count again succeeds and changes nothing, also while requests run.", _again),
        Rule("another", "Another count re-allocates when nothing runs.", _another),
        Rule("busy", "While something runs another count is FAILED_PRECONDITION.", _busy),
    ),
)
