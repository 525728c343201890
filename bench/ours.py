"""Our engine in a process of its own: `python -m bench.ours MODEL_DIR THREADS [QUANTIZATION]`, see `helpers`.

No front, no gRPC. The engine's own loop runs as in a worker, with the worker of processors; in the socket's place
messages are handed over as they are. So is vLLM measured: by the caller of its engine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from os import environ
from typing import Literal, Protocol, cast

from bench.helpers import Job, answer_lines
from bench.peer_env import KV_CACHE_GIB
from bench.replies import Reply
from bench.traces import Trace
from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import (
    CommandRequest,
    CommandResult,
    EngineMessage,
    EngineStatus,
    FrontMessage,
    State,
    StepOutputs,
)
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.loop import EngineLoop
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.single_process import SingleProcessExecutor

MAX_MODEL_LEN = 2048
MEMORY_LIMIT_BYTES = 10 << 30


class Hearer(Protocol):
    """What one request's messages are told to."""

    finish_reason: str  # of the last message

    def add(self, tokens: list[int], now_s: float, cached_tokens: int = 0) -> None:
        """Take one message."""


class Desk:
    """Implements `engine.loop.Transport`: takes requests from here, and gives to their traces what comes back."""

    def __init__(self) -> None:
        self.status = EngineStatus(State.STARTING)
        self.traces: Mapping[str, Hearer] = {}
        self.num_open = 0
        self._waiting: list[FrontMessage] = []

    def __repr__(self) -> str:
        return f"Desk({self.status.state}, {self.num_open} open)"

    def post(self, message: FrontMessage) -> None:
        """Have the loop receive a message."""
        self._waiting.append(message)

    def receive(self, timeout_s: float) -> list[FrontMessage]:
        """See `Transport`. Never waits: whoever turns the loop has posted something, or something is computed."""
        del timeout_s
        messages, self._waiting = self._waiting, []
        return messages

    def send(self, message: EngineMessage) -> None:
        """See `Transport`. Raises RuntimeError if a request or a command failed."""
        if isinstance(message, StepOutputs):
            self._take(message)
        elif isinstance(message, EngineStatus):
            self.status = message
        elif isinstance(message, CommandResult) and message.error_reason:
            raise RuntimeError(f"{message.error_reason}: {message.error_message}")

    def _take(self, message: StepOutputs) -> None:
        if message.failed or message.refused:
            raise RuntimeError(f"requests failed: {message.failed | message.refused}")
        now_s = time.monotonic()
        for output in message.outputs:
            trace = self.traces[output.request_id]
            trace.add(output.token_ids, now_s, output.cached_tokens)
            trace.finish_reason = output.finish_reason or ""
            self.num_open -= output.finish_reason is not None


class Engine:
    """The engine's loop, turned from here."""

    def __init__(self, settings: EngineSettings) -> None:
        self._desk = Desk()
        executor = SingleProcessExecutor(settings, environ, Host())
        controller = Controller(settings, executor, send=self._desk.send, clock=time.monotonic)
        self._loop = EngineLoop(self._desk, controller)
        self._num_jobs = 0
        controller.start()
        self._open()

    def __repr__(self) -> str:
        return f"Engine({self._desk!r}, {self._num_jobs} jobs done)"

    @property
    def compute_path(self) -> str:
        """Return which forward pass computes."""
        model = self._desk.status.model
        return model.compute_path if model else ""

    def run(self, job: Job) -> list[Reply]:
        """Return the replies in order. Raises RuntimeError if one of them failed."""
        self._num_jobs += 1
        desk = self._desk
        traces: dict[str, Trace] = {}
        desk.traces, desk.num_open = traces, len(job.requests)
        for wave in job.waves:
            for request in wave:
                request_id = f"{self._num_jobs}-{request.id}"
                traces[request_id] = Trace(request, time.monotonic())
                desk.post(make_add(request_id, request.prompt, max_tokens=request.max_tokens))
            while not all(trace.has_begun for trace in traces.values()):
                self._loop.turn()
        while desk.num_open:
            self._loop.turn()
        return [trace.reply() for trace in traces.values()]

    def _open(self) -> None:
        """Agree with itself on the blocks that it reported. Raises RuntimeError if it could not load."""
        status = self._desk.status
        if status.report is None:
            raise RuntimeError(f"the engine did not load: {status.failure_reason}: {status.failure_message}")
        self._desk.post(CommandRequest(1, InitializeCache(status.report.num_gpu_blocks)))
        self._loop.turn()


Quantization = Literal["none", "int8", "int4"]


def settings_of(model_dir: str, threads: int, quantization: Quantization = "none") -> EngineSettings:
    """Return a worker's defaults, with as much cache as the peer has."""
    return EngineSettings(
        model=model_dir,
        max_model_len=MAX_MODEL_LEN,
        memory_limit_bytes=MEMORY_LIMIT_BYTES,
        kv_cache_memory_bytes=KV_CACHE_GIB << 30,
        threads=threads,
        quantization=quantization,
    )


def main() -> None:
    """Answer jobs until standard input ends."""
    model_dir, threads, *rest = sys.argv[1:]
    engine = Engine(settings_of(model_dir, int(threads), cast("Quantization", rest[0] if rest else "none")))
    print(f"[bench] ours computes with: {engine.compute_path}", file=sys.stderr, flush=True)
    answer_lines(engine.run)


if __name__ == "__main__":
    main()
