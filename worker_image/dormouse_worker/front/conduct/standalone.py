"""A worker that agrees with itself: it allocates what it reported, for there is no operator and no other rank."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from dormouse_api.names import INFERENCE_SERVICE
from dormouse_api.status import CallError
from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import State
from dormouse_worker.common.tasks import CLASSIFY, EMBED, GENERATE, SCORE, TRANSCRIBE
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)


async def agree_with_itself(worker: Worker, on_ready: Callable[[], None]) -> None:
    """Initialize the cache after every start of the engine; call `on_ready` each time it serves.

    A FAILED worker ends: there is nobody who would read its status and mend its settings while it runs.
    """
    async for state in worker.changes.stream(lambda: worker.board.state, min_interval_s=0.0):
        if state is State.PROFILED:
            await _initialize(worker)
        elif state is State.READY:
            on_ready()
        elif state is State.FAILED:
            failure = worker.board.failure
            assert failure is not None, "FAILED has a reason"
            print(f"dormouse-worker cannot serve: {failure.reason}: {failure.message}", file=sys.stderr, flush=True)
            worker.died.set()


async def _initialize(worker: Worker) -> None:
    report = worker.board.engine.report
    assert report is not None, "PROFILED comes with a report"
    logger.info("agreeing with itself", extra={"fields": {"num_gpu_blocks": report.num_gpu_blocks}})
    try:
        await worker.command(InitializeCache(report.num_gpu_blocks, report.num_cpu_blocks))
    except CallError as error:
        if worker.board.state is State.PROFILED:  # refused, and nobody would ask again; a dead engine is another matter
            worker.board.fail("CacheNotAllocated", str(error))


_TO_TRY = {
    GENERATE: ("Generate", '{"text": "Hello"}'),
    EMBED: ("Embed", '{"inputs": [{"text": "Hello"}]}'),
    CLASSIFY: ("Classify", '{"inputs": [{"text": "Hello"}]}'),
    TRANSCRIBE: ("Transcribe", '{"audio": "BASE64"}'),
    SCORE: ("Score", '{"query": "Hello", "documents": ["Good morning"]}'),
}


def invitation(name: str, host: str, port: int, http_port: int, *, can_chat: bool, task: str = GENERATE) -> str:
    """Return what a user reads once the worker serves: where, and a line to try."""
    shown = "localhost" if host in {"[::]", "0.0.0.0"} else host  # noqa: S104  compared, not bound
    call, body = _TO_TRY[task]
    command = f"dormouse chat --model '{name}'" if can_chat else f"dormouse generate 'Hello' --model '{name}'"
    return (
        f"{name} is ready: gRPC on {shown}:{port}, metrics on http://{shown}:{http_port}/metrics\n"
        + (f"  try  {command} --address {shown}:{port}\n" if task == GENERATE else "")
        + f"  or   grpcurl -plaintext -d '{body}' {shown}:{port} {INFERENCE_SERVICE}/{call}\n"
        + "  end  Ctrl-C"
    )
